"""Chromium without a window, for pages that people open: what it asks for, complains about and lays out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .installed import NotInstalledError

#: CSS pixels of a telephone held upright.
PHONE = (390, 844)

#: What Chromium's log has in place of a page where the browser itself asks, for its updates.
_BY_ITSELF = "not an origin"

_POLICY = re.compile(r'<meta http-equiv="?Content-Security-Policy"?[^>]*>')
#: Windows have a least width, frames have none.
_FRAME = """<!doctype html><title></title><script>
const frame = document.createElement("iframe");
frame.width = {width}; frame.height = {height}; frame.style.border = "none"; frame.srcdoc = {page};
frame.onload = () => {{
  const page = frame.contentDocument, images = [...page.images];
  document.title = JSON.stringify({{
    wide: page.documentElement.scrollWidth, high: page.documentElement.scrollHeight,
    images: images.length, broken: images.filter((one) => !one.complete || one.naturalWidth === 0).length,
  }});
}};
addEventListener("DOMContentLoaded", () => document.body.append(frame));
</script>"""


def find_chromium() -> Path:
    """The browser of the system.

    Raises:
        NotInstalledError: there is none.
    """
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        raise NotInstalledError("Chromium is not installed (Debian: apt-get install chromium)")
    return Path(found)


@dataclass(frozen=True)
class Opened:
    """What a browser made of a page."""

    document: str  # the page as it was understood, as HTML
    console: tuple[str, ...]  # messages of the console, errors among them
    requests: tuple[str, ...]  # addresses that the page asked for, but its own


@dataclass(frozen=True)
class Layout:
    """A page on a screen."""

    wide: int  # CSS pixels of the widest thing
    high: int  # CSS pixels of the page's height
    images: int  # how many images it has
    broken: int  # how many of them could not be drawn


def opened(browser: Path, page: Path, folder: Path) -> Opened:
    """Open a page of a file; no name can be looked up.

    Args:
        browser: as ``find_chromium`` gives it.
        page: an HTML file.
        folder: a folder that is made for the browser's own files.
    """
    folder.mkdir()
    log = folder / "net.json"
    words = [
        str(browser), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--enable-logging=stderr", "--v=0", f"--user-data-dir={folder / 'profile'}", "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--log-net-log={log}", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    events = [event.get("params", {}) for event in json.loads(log.read_text(encoding="utf-8"))["events"]]
    asked = {one["url"] for one in events if "url" in one and one.get("initiator", _BY_ITSELF) != _BY_ITSELF}
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "source: chrome:" not in line]
    return Opened(done.stdout, tuple(said), tuple(sorted(one for one in asked if not one.startswith("data:"))))


def laid_out(browser: Path, page: Path, folder: Path, screen: tuple[int, int] = PHONE) -> Layout:
    """Measure a copy of a page that lies in a frame of a screen's size, without the policy that forbids scripts.

    Args:
        browser: as ``find_chromium`` gives it.
        page: an HTML file.
        folder: a folder that is made for the copy and the browser's own files.
        screen: width and height, CSS pixels.
    """
    folder.mkdir()
    text, policies = _POLICY.subn("", page.read_text(encoding="utf-8"))
    if policies != 1:
        raise ValueError(f"{page} has {policies} policies, not one")
    outer = folder / "outer.html"
    quoted = json.dumps(text).replace("<", "\\u003c")
    outer.write_text(_FRAME.format(width=screen[0], height=screen[1], page=quoted), encoding="utf-8")
    document = opened(browser, outer, folder / "browser").document
    found = re.search(r"<title>(\{.*?\})</title>", document)
    if found is None:
        raise ValueError(f"{page} was not measured")
    return Layout(**json.loads(found[1]))
