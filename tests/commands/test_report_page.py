"""The page of a report in a real browser: Chromium without a window sorts, filters, prints, and runs no script of the data's."""

from __future__ import annotations

import base64
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import report_documents

from numbadnn.validate import html as html_report

PHONE, DESK = (390, 844), (1280, 900)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, driven through the DevTools protocol."""
    binary, driver = next(filter(None, map(shutil.which, BROWSERS)), None), shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("chromium and chromium-driver are not installed")
    selenium = pytest.importorskip("selenium.webdriver")
    for name in ("jinja2", "matplotlib"):
        pytest.importorskip(name)
    options = selenium.ChromeOptions()
    options.binary_location = binary
    # root may not have a sandbox; nothing but pages of these tests is opened
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = selenium.Chrome(options=options, service=selenium.ChromeService(driver))
    yield opened
    opened.quit()


def show(browser: Any, document: dict[str, Any], folder: Path) -> None:
    """Open the page of a document; what the browser said before is forgotten."""
    html_report.write(str(folder / "page.html"), document)
    browser.get_log("browser")
    as_on(browser, DESK)
    browser.get((folder / "page.html").as_uri())


def as_on(browser: Any, size: tuple[int, int], scheme: str = "light", media: str = "screen") -> None:
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def screenshot(browser: Any, file: Path) -> Any:
    """What is to be seen, as an array of pixels; kept in a file to be looked at."""
    import numpy as np
    from PIL import Image

    picture = base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"])
    file.write_bytes(picture)
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)


def column(browser: Any, title: str) -> list[str]:
    """The cells of a column, of the rows that are shown, from the top."""
    found: list[str] = browser.execute_script(
        """const heads = [...document.querySelectorAll("#rows thead th")].map((head) => head.textContent);
        const rows = [...document.querySelectorAll("#rows tbody tr")].filter((row) => row.offsetParent);
        return rows.map((row) => row.cells[heads.indexOf(arguments[0])].textContent);""",
        title,
    )
    return found


def click(browser: Any, title: str) -> None:
    browser.find_element("xpath", f"//table[@id='rows']//th/button[normalize-space()='{title}']").click()


def test_a_column_sorts_by_its_numbers_and_a_filter_hides_rows(browser: Any, tmp_path: Path) -> None:
    show(browser, report_documents.model(), tmp_path)
    assert column(browser, "#") == [str(n) for n in range(1, 41)]
    click(browser, "local error")
    ascending = [float(text) if text else None for text in column(browser, "local error")]
    known = [value for value in ascending if value is not None]
    assert known == sorted(known) and len(known) == 32 and ascending[32:] == [None] * 8 and known[-1] == 37.5
    click(browser, "local error")
    assert column(browser, "local error")[0] == "37.5" and column(browser, "local error")[32:] == [""] * 8
    click(browser, "node")
    assert column(browser, "node")[:3] == ["/layer0/node_1", "/layer0/node_2", "/layer0/node_3"]  # 2 before 10

    browser.find_element("id", "filter").send_keys("layer1/ relu")
    assert column(browser, "operator") == ["Relu"] and column(browser, "#") == ["10"]
    assert browser.find_element("id", "count").text == "1 of 40 rows"
    browser.find_element("id", "filter").clear()
    browser.find_element("id", "filter").send_keys(" ")
    browser.find_element("xpath", "//select[@id='result']/option[.='mismatch']").click()
    assert column(browser, "#") == ["31"]
    assert not browser.get_log("browser")


def test_light_dark_phone_and_paper(browser: Any, tmp_path: Path) -> None:
    show(browser, report_documents.model(), tmp_path)
    shades = {}
    for name, size, scheme in (("light", DESK, "light"), ("dark", DESK, "dark"), ("phone", PHONE, "light")):
        as_on(browser, size, scheme)
        pixels = screenshot(browser, tmp_path / f"{name}.png")
        assert pixels.shape == (size[1], size[0], 3)
        shades[name] = pixels.mean()
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        lightest, darkest = pixels.max(), pixels.min()
        assert lightest - darkest > 150  # there is text, and it can be read
    assert shades["dark"] < 80 < 200 < min(shades["light"], shades["phone"])
    labels = browser.execute_script("return getComputedStyle(document.querySelector('#rows td'), '::before').content")
    assert labels == '"#"'  # a cell of a card says what it is
    as_on(browser, DESK, "dark", "print")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not browser.find_element("id", "filter").is_displayed()
    # Chromium paints no button where the head of a table is repeated on the next sheet
    assert (
        browser.execute_script("return getComputedStyle(document.querySelector('#rows th'), '::before').content")
        == '"#"'
    )
    paper = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    assert base64.b64decode(paper).startswith(b"%PDF")


def test_a_link_leads_to_the_line_that_replays_a_row(browser: Any, tmp_path: Path) -> None:
    document = report_documents.model()
    show(browser, document, tmp_path)
    browser.find_element("css selector", "#rows tbody tr:nth-child(3) a").click()
    line = browser.execute_script("return document.querySelector('dt:target + dd').textContent.trim()")
    assert line == document["nodes"][2]["replay"]


def test_no_text_of_a_document_is_run(browser: Any, tmp_path: Path) -> None:
    show(browser, report_documents.hostile(report_documents.model()), tmp_path)
    assert browser.execute_script("return [typeof window.hacked, document.images.length]") == ["undefined", 0]
    assert report_documents.HOSTILE[:30] in browser.find_element("css selector", "#rows tbody").text
    click(browser, "node")
    assert not browser.get_log("browser")


def test_the_policy_of_a_page_lets_no_other_script_run(browser: Any, tmp_path: Path) -> None:
    show(browser, report_documents.model(), tmp_path)
    file = tmp_path / "page.html"
    file.write_text(file.read_text().replace("</body>", "<script>window.hacked = 1</script></body>"))
    browser.get(file.as_uri())
    assert browser.execute_script("return typeof window.hacked") == "undefined"
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))
    assert column(browser, "#")[0] == "1" and browser.find_element("id", "filter").is_displayed()
