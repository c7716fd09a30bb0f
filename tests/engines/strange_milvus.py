"""A Milvus that changes some of the replies of the one behind it."""

import random
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf.message_factory import GetMessageClass
from pymilvus.grpc_gen import milvus_pb2

METHODS = milvus_pb2.DESCRIPTOR.services_by_name["MilvusService"].methods_by_name
HOSTILE = {
    str: ["", "x", "\x1b[31m\x00\u202e", "[" * 5000, '{"format": 1}', "9" * 400],
    bytes: [b"", b"\xff", b"[" * 5000, b'{"a": {}}', b"null", b"9" * 400],
    float: [float("nan"), float("inf"), -1e30, 0.0],
    int: [0, 1, 2, 5, 99, 2**31 - 1],
    bool: [True, False],
}


class StrangeMilvus:
    """Passes requests on to the server at `target`; a context manager.

    After `harm(seed)` up to three replies are changed. `seed` says which, and what they become.
    """

    def __init__(self, target):
        self._chance = None
        self._channel = grpc.insecure_channel(target)
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers([self])
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *_):
        self._server.stop(0)
        self._channel.close()

    def harm(self, seed):
        self._chance = None if seed is None else random.Random(seed)

    def service(self, call):
        """Return what answers a method, as gRPC asks of servers of any kind."""
        passed = self._channel.unary_unary(call.method)
        kind = GetMessageClass(METHODS[call.method.rpartition("/")[2]].output_type)

        def answer(request, context):
            reply, chance = passed(request), self._chance
            if chance is None or chance.random() < 0.6:
                return reply
            if chance.random() < 0.1:
                context.abort(chance.choice(list(grpc.StatusCode)[1:]), "\x1b[31mNo\n")
            if chance.random() < 0.1:
                return reply[: chance.randrange(len(reply) + 1)]
            message = kind.FromString(reply)
            for _ in range(chance.randint(1, 3)):
                change(message, chance)
            return message.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(answer)


def places(message):
    """Yield each field of a message that is set, and of those in it, with the message that holds it."""
    for field, value in message.ListFields():
        yield message, field
        if field.message_type and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else [value]:
                yield from places(inner)


def change(message, chance):
    """Clear, double or replace a field that is set."""
    fields = list(places(message))
    if not fields:
        return
    holder, field = chance.choice(fields)
    value = getattr(holder, field.name)
    is_map = field.message_type and field.message_type.GetOptions().map_entry
    if is_map or chance.random() < 0.3:
        holder.ClearField(field.name)
    elif field.is_repeated and chance.random() < 0.5:
        value.extend(list(value))
    elif not field.message_type:
        first = value[0] if field.is_repeated else value
        hostile = chance.choice(HOSTILE[type(first)])
        if field.enum_type:
            hostile = 1
        if field.is_repeated:
            value[0] = hostile
        else:
            setattr(holder, field.name, hostile)
