"""The chat page of a running `lily serve` in headless Chromium: an answer streams, thinking is folded, stop stops.

    lily serve --port 8080 &
    python tools/sdk_tests/page.py --url http://127.0.0.1:8080

Needs the package `selenium` and the programs chromium and chromedriver, and sets up nothing itself.
"""

import argparse
import shutil
import sys

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    sys.exit("missing: the Python package `selenium` (pip install selenium)")

PATIENCE_S = 120


def texts(browser, selector):
    return [element.text for element in browser.find_elements(By.CSS_SELECTOR, selector)]


def ask(browser, question):
    browser.find_element(By.ID, "question").send_keys(question, Keys.ENTER)


def until(browser, condition, what):
    WebDriverWait(browser, PATIENCE_S, poll_frequency=0.05).until(lambda _: condition(), what)


def idle(browser):
    return browser.find_element(By.ID, "send").text == "Send"


def check(browser, url):
    browser.get(url)
    until(browser, lambda: " on " in browser.find_element(By.ID, "model").text, "the page names model and device")

    ask(browser, "What is 17 + 25?")
    until(browser, lambda: texts(browser, ".figures"), "the answer ends")
    assert texts(browser, ".user .text") == ["What is 17 + 25?"]
    assert texts(browser, ".assistant .text")[0], "the answer has words"
    thoughts = browser.find_element(By.CSS_SELECTOR, "details.thoughts")
    assert not thoughts.get_property("open"), "thinking is folded"
    folded = thoughts.size["height"]
    thoughts.find_element(By.TAG_NAME, "summary").click()
    assert thoughts.size["height"] > folded, "thinking unfolds"
    assert "tokens/s" in texts(browser, ".figures")[0] and "from the cache" in texts(browser, ".figures")[0]

    browser.find_element(By.ID, "thinking").click()
    ask(browser, "Tell me a story about a fox.")
    until(browser, lambda: len(texts(browser, ".assistant .text")) == 2, "the second answer begins")
    browser.find_element(By.ID, "send").click()
    until(browser, lambda: idle(browser), "the answer stops")
    assert len(browser.find_elements(By.CSS_SELECTOR, "details.thoughts")) == 1, "no thinking where it is switched off"
    assert not texts(browser, ".error"), texts(browser, ".error")

    browser.find_element(By.ID, "reset").click()
    assert not browser.find_elements(By.CSS_SELECTOR, ".turn"), "a new chat is empty"
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE" and "favicon" not in entry["message"]]
    assert not severe, severe


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="where lily serves, such as http://127.0.0.1:8080")
    parser.add_argument("--screenshot", help="where to save a picture of the page as it was left")
    arguments = parser.parse_args()
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    for name, path in programs.items():
        if path is None:
            sys.exit(f"missing: the program `{name}`")

    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"]
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=900,700"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs["chromedriver"]))
    try:
        check(browser, arguments.url)
        print("ok      the chat page")
    finally:
        if arguments.screenshot:
            browser.save_screenshot(arguments.screenshot)
        browser.quit()


if __name__ == "__main__":
    main()
