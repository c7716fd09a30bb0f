"""A page in a real browser: Chromium without a head, driven by playwright, where both are installed."""

import shutil

import pytest

CHROMIUM = next(
    filter(
        None,
        map(
            shutil.which,
            (
                "chromium-headless-shell",
                "chromium",
                "chromium-browser",
                "google-chrome",
            ),
        ),
    ),
    None,
)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed"
    )
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        yield chromium
        chromium.close()


def opened(browser, file, **context):
    """The page of a file, and what happened while it opened: requests, dialogs, errors."""
    page = browser.new_context(**context).new_page()
    page.set_default_timeout(60_000)
    seen = {"requests": [], "dialogs": [], "errors": []}
    page.on("request", lambda request: seen["requests"].append(request.url))
    page.on(
        "dialog",
        lambda dialog: (seen["dialogs"].append(dialog.message), dialog.dismiss()),
    )
    page.on("pageerror", lambda error: seen["errors"].append(str(error)))
    page.goto(file.as_uri())
    return page, seen
