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
