"""Programs of ours that start at once: a folder for the PATH, and a process that has imported everything and forks.

As a program, `forked.py ADDRESS` is that process. A launcher gives it a command with its streams, and ends as it does.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from importlib import import_module

PROGRAMS = {"selfrag": "selfrag.cli.main", "critic": "critic.cli.main"}
PRELOADED = (
    *PROGRAMS.values(),
    "torch",
    "transformers.models.llama.modeling_llama",
    "datasets",
    "spacy",
    "vllm",
    "selfrag.api",
    "selfrag.experiments.studies",
)
"""What most commands import, seconds of each."""
LAUNCHER = """#!{python} -S
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
    socket.send_fds(server, [json.dumps([os.getcwd(), dict(os.environ), words]).encode()], [0, 1, 2])
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.recv(9) or 1))
"""


@contextlib.contextmanager
def programs(folder):
    """A folder with `selfrag` and `critic`, for as long as the context lasts."""
    address = str(folder / "socket")
    for name in PROGRAMS:
        (folder / name).write_text(
            LAUNCHER.format(python=sys.executable, address=address)
        )
        (folder / name).chmod(0o755)
    with subprocess.Popen(
        [sys.executable, __file__, address], stdout=subprocess.PIPE
    ) as server:
        assert server.stdout.readline() == b"ready\n"
        yield folder
        server.kill()


def _serve(address):
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        os.write(1, b"ready\n")
        while True:
            connection, _ = server.accept()
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _run(connection)
            connection.close()


def _run(connection):
    asked, streams, _, _ = socket.recv_fds(connection, 2**20, 3)
    while more := connection.recv(2**20):
        asked += more
    folder, environment, words = json.loads(asked)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # those of the server are of other kinds
    sys.stdin = os.fdopen(0, "r")
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w")
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = words
    code = 1
    try:
        code = import_module(PROGRAMS[words[0]]).main(words[1:])
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(str(code or 0).encode())
        os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1])
