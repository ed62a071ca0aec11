"""Chatting on the page: answers come, are stopped, made again and kept."""

from __future__ import annotations

import re

import pytest
from selenium.webdriver.common.keys import Keys

from tests.gateway.page.talking import ask, await_answer, settings
from tests.support.browser import Browser

LONG = "Tell me about bees."


def test_an_answer_comes_with_its_statistics_and_is_kept(browser: Browser) -> None:
    settings(browser, max_tokens="24", temperature="0")
    ask(browser, LONG)
    first = await_answer(browser)
    assert len(first.split()) > 5
    assert "tokens/s" in browser.text(".statistics")
    assert "accepted drafts a segment" in browser.text(".statistics")
    assert browser.text(".talk-head .model") == "bundled"
    assert browser.one("[title='Copy the answer']").is_displayed()
    assert "24 tokens" in browser.text(".statistics")
    browser.button("Regenerate").click()
    browser.wait(lambda: browser.one("#stop") or browser.one("#send"))
    assert await_answer(browser) == first, "temperature 0 gives the same answer again"
    browser.driver.refresh()
    browser.wait(lambda: first in browser.text(".message .markdown"), "the conversation was kept")
    assert browser.text(".conversations .title") == LONG


@pytest.mark.parametrize("way", ["paste", "drop"])
def test_an_image_is_refused_in_words(browser: Browser, way: str) -> None:
    field = browser.wait(lambda: browser.one("#question"))
    browser.driver.execute_script(
        """
        const data = new DataTransfer();
        data.items.add(new File(["x"], "photo.png", { type: "image/png" }));
        const given = { bubbles: true, cancelable: true, clipboardData: data, dataTransfer: data };
        const made = { paste: ClipboardEvent, drop: DragEvent }[arguments[1]];
        arguments[0].dispatchEvent(new made(arguments[1], given));
        """,
        field,
        way,
    )
    browser.wait(lambda: "Images and other files are not supported" in browser.text(".composer [role=alert]"))
    field.send_keys("T")
    browser.wait(lambda: not browser.one(".composer [role=alert]"))
    field.send_keys(Keys.BACKSPACE)


def test_an_answer_can_be_stopped(browser: Browser) -> None:
    ask(browser, LONG)
    browser.wait(lambda: browser.text(".message.assistant .markdown"), "the answer has begun")
    stop = browser.one("#stop")
    if stop is not None:  # else it was complete already
        stop.click()
    await_answer(browser)
    assert re.search(r"\d+ tokens · [\d.]+ tokens/s", browser.text(".statistics")), (
        "also where it was stopped"
    )
    assert browser.text(".message.assistant .markdown")


@pytest.mark.proof
def test_tabs_keep_each_others_answers(browser: Browser) -> None:
    driver = browser.driver
    settings(browser, max_tokens="6")
    ask(browser, "First")
    await_answer(browser)
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    try:
        browser.open(page_of(browser, first))
        browser.wait(lambda: browser.one("#send"))
        settings(browser, temperature="0")
        driver.switch_to.window(first)
        ask(browser, "Second")
        await_answer(browser)
        driver.switch_to.window(driver.window_handles[-1])
        browser.wait(lambda: "Second" in browser.text(".message.user"), "the tab shows what the other asked")
        ask(browser, "Third")
        await_answer(browser)
    finally:
        driver.close()
        driver.switch_to.window(first)
    browser.wait(lambda: "Third" in browser.text(".message.user"), "the first tab shows it as well")
    driver.refresh()
    browser.wait(lambda: browser.text(".message.user .bubble").split() == ["First", "Second", "Third"])
    browser.wait(lambda: len(browser.text(".message.assistant .statistics").splitlines()) == 3)


def page_of(browser: Browser, window: str) -> str:
    """Return the address of the page in another window, and come back."""
    here = browser.driver.current_window_handle
    browser.driver.switch_to.window(window)
    url = browser.driver.current_url
    browser.driver.switch_to.window(here)
    return url


def test_a_broken_answer_goes_on_from_its_text(browser: Browser) -> None:
    settings(browser, max_tokens="24", temperature="0")
    ask(browser, LONG)
    whole = await_answer(browser)
    browser.run(
        """
        const kept = JSON.parse(localStorage.getItem('flowedge.conversations'));
        const answer = kept[0].messages.at(-1);
        answer.content = answer.content.slice(0, 40);
        answer.error = 'device v2 is lost';
        localStorage.setItem('flowedge.conversations', JSON.stringify(kept));
        """
    )
    browser.driver.refresh()
    browser.wait(lambda: browser.text(".message .error"), "the answer is broken")
    begun = browser.text(".message.assistant .markdown").strip()
    assert whole.startswith(begun) and len(begun) < len(whole)
    browser.button("Try again").click()
    browser.wait(lambda: not browser.text(".message .error"))
    rest = await_answer(browser)
    assert rest.startswith(begun) and len(rest) > len(begun)
    assert browser.text(".message.user .bubble") == LONG


def test_an_answer_says_which_device_was_lost_until_it_goes_on(browser: Browser) -> None:
    browser.run(
        """
        const fetched = window.fetch;
        const encoded = (text) => new TextEncoder().encode(text);
        const event = (content) => JSON.stringify({ choices: [{ delta: { content } }] });
        const chunk = (content) => encoded(`data: ${event(content)}\\n\\n`);
        window.fetch = (path, options) => {
          if (!String(path).endsWith("v1/chat/completions")) return fetched(path, options);
          window.fetch = fetched;
          const body = new ReadableStream({
            start(stream) {
              stream.enqueue(chunk("Bees "));
              stream.enqueue(encoded(": waiting\\n\\n: recovering device v2\\n\\n"));
              window.goOn = () => stream.enqueue(chunk("fly"));
              window.end = () => { stream.enqueue(encoded("data: [DONE]\\n\\n")); stream.close(); };
            },
          });
          return Promise.resolve(new Response(body));
        };
        """
    )
    ask(browser, LONG)
    browser.wait(lambda: "Device v2 was lost, the answer goes on" in browser.text(".message .lost"))
    assert browser.text(".message.assistant .markdown").strip() == "Bees"
    assert "Device v2 was lost" in browser.text("[aria-live=polite]")
    browser.run("window.goOn()")
    browser.wait(lambda: not browser.one(".message .lost"), "the line vanishes")
    browser.run("window.end()")
    assert await_answer(browser).strip() == "Bees fly"
    assert "lost" not in browser.run("return localStorage.getItem('flowedge.conversations')")


@pytest.mark.proof
def test_the_last_question_can_be_edited(browser: Browser) -> None:
    settings(browser, max_tokens="8")
    ask(browser, "One")
    await_answer(browser)
    browser.button("Edit").click()
    field = browser.one("#question")
    assert field.get_attribute("value") == "One"
    field.send_keys(" and two", Keys.ENTER)
    await_answer(browser)
    assert browser.text(".message.user .bubble") == "One and two"


def test_conversations_are_listed_renamed_and_deleted(browser: Browser) -> None:
    for question in ("First thing", "Second thing"):
        browser.button("New conversation").click()
        settings(browser, max_tokens="4")
        ask(browser, question)
        await_answer(browser)
    assert browser.text(".conversations .title").splitlines()[:2] == ["Second thing", "First thing"]
    browser.one("[aria-label='Rename Second thing']").click()
    browser.wait(lambda: browser.one(".rename")).send_keys(Keys.CONTROL, "a", Keys.NULL, "Other", Keys.ENTER)
    browser.wait(lambda: browser.text(".conversations .title").startswith("Other"), "it was renamed")
    browser.one("[aria-label='Delete First thing']").click()
    browser.wait(lambda: "First thing" not in browser.text(".conversations"), "it was deleted")


def test_errors_are_told_in_words_with_a_retry(browser: Browser) -> None:
    settings(browser, max_tokens="999999")
    ask(browser, LONG)
    browser.wait(lambda: browser.text(".message .error"), "the error is told")
    assert "999999" in browser.text(".message .error")
    assert browser.button("Try again").is_enabled()
    browser.complaints()  # the browser tells of the status 400 itself
