"""Fetches a metrics page, bounded in time and size; every failure is a state with its cause."""

from __future__ import annotations

import time

import httpx
from schedtop.engine.contract.sanitize import one_line
from schedtop.engine.scrape.page import EngineKey, PageError, PageReading, read_page

MAX_PAGE_BYTES = 16 << 20
WITHIN_S = 5.0


def page_url(address: str) -> str:
    """The page of a server: `/metrics` unless the address has a path. Raises `PageError`."""
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise PageError(f"{address}: {error}") from None
    if not url.host:
        raise PageError(f"{address} names no host: write http://HOST:PORT")
    return str(url.copy_with(path="/metrics") if url.path in ("", "/") else url)


class Fetcher:
    """One server's page. Used by one thread."""

    def __init__(self, address: str, client: httpx.Client | None = None) -> None:
        self.url = page_url(address)
        self._client = client or httpx.Client(timeout=WITHIN_S, follow_redirects=False)

    def fetch(self) -> dict[EngineKey, PageReading]:
        """Fetch the page now. Raises `PageError` for any failure."""
        try:
            return read_page(self._text())
        except httpx.TimeoutException:
            raise PageError(f"no answer within {WITHIN_S:g} s") from None
        except httpx.HTTPError as error:
            words = one_line(str(error)).rpartition("] ")[2]  # without the system's number
            raise PageError(words or type(error).__name__) from None

    def _text(self) -> str:
        deadline_s, body = time.monotonic() + WITHIN_S, bytearray()
        with self._client.stream("GET", self.url) as answer:
            if answer.status_code != 200:
                raise PageError(f"the server answered {answer.status_code} {answer.reason_phrase}".rstrip())
            kind = answer.headers.get("content-type", "")
            if "html" in kind:
                raise PageError("the server answered with a web page: is this its metrics address?")
            for chunk in answer.iter_bytes():
                body += chunk
                if len(body) > MAX_PAGE_BYTES:
                    raise PageError(f"the page has more than {MAX_PAGE_BYTES >> 20} MiB")
                if time.monotonic() > deadline_s:
                    raise PageError(f"the page took more than {WITHIN_S:g} s")
        return body.decode(errors="replace")

    def close(self) -> None:
        self._client.close()
