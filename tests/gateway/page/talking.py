"""What a person does on the page's chat."""

from __future__ import annotations

from selenium.webdriver.common.keys import Keys

from tests.support.browser import Browser


def ask(browser: Browser, question: str) -> None:
    browser.wait(lambda: browser.one("#question")).send_keys(question, Keys.ENTER)


def await_answer(browser: Browser) -> str:
    """Return the last answer, once it is complete."""
    browser.wait(lambda: browser.one("#send"), "the answer is complete")
    return browser.text(".message:last-child .markdown")


def settings(browser: Browser, **values: str) -> None:
    """Set what the chat asks with."""
    browser.button("Settings").click()
    for label, value in values.items():
        field = browser.wait(lambda: browser.one(f"dialog [aria-describedby='hint-{label}']"))  # noqa: B023
        field.send_keys(value)
    browser.button("Save").click()
    browser.wait(lambda: not browser.one("dialog"))


def await_activity(browser: Browser) -> None:
    """Return to the chat once the page is told what the pipeline does: it has no tree of earlier answers."""
    browser.show("live")
    browser.wait(lambda: browser.one(".figures"), "the pipeline tells what it does")
    browser.show("chat")
