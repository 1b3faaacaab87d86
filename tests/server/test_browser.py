"""A study in a real browser, on a real server: upload, evidence, two blind readers, adjudication, export."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oidc_provider import CLIENT, SECRET, oidc_provider
from served import Served, command, served
from server_world import PASSWORD, picture

from tdumpra.server.accounts import add_account, link
from tdumpra.server.database import Database

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
PEOPLE = {"ada": "admin", "rita": "reader", "rolf": "reader", "anna": "adjudicator"}


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_files) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("walk") / "s"
    database = Database(f"sqlite:///{folder / 'cases.sqlite'}")
    with database.write() as session:
        for name, role in PEOPLE.items():
            add_account(session, name, role, PASSWORD)
    database.close()
    with served(model_files[0], folder) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield launched
        launched.close()


def log_in(browser: Any, server: Served, name: str, width: int = 1280) -> Any:
    """A window of its own, in which everything that goes wrong is noted."""
    page = browser.new_context(viewport={"width": width, "height": 900}, accept_downloads=True).new_page()
    page.trouble = []
    page.on("console", lambda message: page.trouble.append(message.text))
    page.on("pageerror", lambda error: page.trouble.append(str(error)))
    ours = (server.address, "data:")
    page.on("request", lambda request: None if request.url.startswith(ours) else page.trouble.append(request.url))
    page.goto(server.address)
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{server.address}/")
    return page


def answer(page: Any, label: str, *, button: str = "Keep my answer") -> None:
    """Fill in a form as a person with a keyboard does."""
    page.get_by_role("radio", name=label, exact=True).focus()
    page.keyboard.press("Space")
    if button != "Decide":
        page.get_by_role("radio", name="4: sure").check()
    page.get_by_role("button", name=button, exact=True).click()


def test_a_whole_study(browser, server, tmp_path):
    files = []
    for number, colour in enumerate(("amber", "blue", "cyan", "amber")):
        files.append(tmp_path / f"{number}.jpg")
        files[-1].write_bytes(picture(colour, number, kind="JPEG", size=64))
    (tmp_path / "broken.png").write_bytes(b"nothing")

    admin = log_in(browser, server, "ada")
    admin.get_by_role("link", name="Add images").first.click()
    admin.get_by_label("Images").set_input_files([*map(str, files), str(tmp_path / "broken.png")])
    admin.get_by_label("Lesion").fill("")
    admin.get_by_role("button", name="Add them").click()
    admin.get_by_role("link", name="Case 4").wait_for()
    admin.get_by_text("not taken").wait_for()
    admin.get_by_role("link", name="Case 1").click()
    admin.get_by_role("heading", name="What each opinion says").wait_for()  # until it can be seen
    assert admin.locator(".case-pictures img").evaluate("image => image.naturalWidth") == 64
    admin.trouble = [line for line in admin.trouble if "422" not in line]  # the broken file
    assert admin.trouble == []

    truth = ["amber", "blue", "cyan", "amber"]
    for name, said in (("rita", truth), ("rolf", ["amber", "blue", "amber", "amber"])):
        reader = log_in(browser, server, name, width=390)
        for label in said:
            reader.goto(f"{server.address}/next")
            reader.get_by_role("heading", name="Your own reading first").wait_for()  # until it can be seen
            assert reader.get_by_text("Prediction:").count() == 0
            answer(reader, label)
            reader.get_by_role("heading", name="Prediction:").wait_for()  # until it can be seen
            assert reader.evaluate("document.documentElement.scrollWidth") == 390
        reader.goto(f"{server.address}/next")
        reader.wait_for_url(f"{server.address}/")
        reader.get_by_text("Nothing waits for your reading").wait_for()  # until it can be seen
        assert reader.trouble == []

    judge = log_in(browser, server, "anna")
    judge.get_by_label("readers differ").check()
    judge.get_by_role("button", name="Show").click()
    judge.get_by_role("link", name="Case 3").click()
    answer(judge, "cyan", button="Decide")
    judge.get_by_role("heading", name="Decided: cyan").wait_for()  # until it can be seen
    judge.get_by_role("link", name="Study").click()
    judge.get_by_text("Fleiss' κ").wait_for()  # until it can be seen
    with judge.expect_download() as download:
        judge.get_by_role("link", name="The decided cases as a ZIP").click()
    download.value.save_as(tmp_path / "cases.zip")
    assert judge.trouble == []

    zipfile.ZipFile(tmp_path / "cases.zip").extractall(tmp_path / "cases")
    table = tmp_path / "cases" / "cases.csv"
    assert [line.split(",")[1] for line in table.read_text().splitlines()[1:]] == truth
    assert '"images": 4' in command("data", "inspect", f"csv:{table}", "--json").replace('"n_images"', '"images"')
    model = next((server.folder / "models").glob("*.safetensors"))
    trust = ("--trust-code", "tiny_networks:plain")
    validated = json.loads(command("validate", model, f"csv:{table}", "--out", tmp_path / "v", "--json", *trust))
    assert validated  # figures of the four cases
    assert "all as they were written" in command("audit", "verify", "--folder", server.folder)
    assert "come out as they were" in command("audit", "replay", "--folder", server.folder, *trust)


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_on_any_page(browser, server, width, scheme):
    page = log_in(browser, server, "ada", width)
    page.emulate_media(color_scheme=scheme)
    case = page.evaluate("fetch('/v1/cases').then(r => r.json()).then(r => r.cases[0] && r.cases[0].id)")
    paths = ["/", "/upload", "/study", "/models", "/nothing", *([f"/cases/{case}"] if case else [])]
    for path in paths:
        page.goto(server.address + path)
        assert page.evaluate("document.documentElement.scrollWidth") == width, path


def test_pages_can_be_read_without_scripts(browser, server):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(server.address)
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Cases").wait_for()  # until it can be seen
    context.close()


def test_a_login_at_a_provider_of_another_site(browser, tmp_path, model_files):
    """``localhost`` and ``127.0.0.1`` are two sites to a browser, which keeps strict cookies from crossing."""
    folder, secret = tmp_path / "s", tmp_path / "secret"
    secret.write_text(SECRET)
    with oidc_provider(host="localhost") as provider:
        database = Database(f"sqlite:///{folder / 'cases.sqlite'}")
        with database.write() as session:
            add_account(session, "rita", "reader", None)
            link(session, "rita", provider.issuer, provider.subject)
        database.close()
        options = ("--oidc-issuer", provider.issuer, "--oidc-client", CLIENT, "--oidc-secret-file", str(secret))
        with served(model_files[0], folder, *options) as server:
            page = browser.new_context(java_script_enabled=False).new_page()
            page.goto(server.address)
            page.get_by_role("link", name="Log in at localhost").click()
            page.wait_for_url(f"{server.address}/")
            page.get_by_role("button", name="Log out rita").click()
            page.wait_for_url(f"{server.address}/login")
            provider.subject = "somebody else"
            page.get_by_role("link", name="Log in at localhost").click()
            assert "somebody else" in page.get_by_role("alert").inner_text()
