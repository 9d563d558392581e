"""The page ``/dkrr`` on the HTTP server of a Dask scheduler: the fits of its cluster, and its workers.

It is made of what the scheduler knows: its workers, and the states that fits have sent (`dkrr.dashboard.states`). The
page loads nothing from elsewhere, takes no input, and asks once a second or two for what has changed.
"""

import base64
import hashlib
from typing import Any
from weakref import WeakSet

import dask
from distributed.http.utils import RequestHandler

from dkrr.dashboard.shown import fragment, whole_page
from dkrr.dashboard.states import TOPIC

PATH = "/dkrr"

_with_page: WeakSet[Any] = WeakSet()
"""Applications of HTTP servers in this process that have the page."""

SCRIPT = """
const main=document.querySelector("main"),lost=document.querySelector("#lost");
const now=location.pathname+"/now";let last="";
async function renew(){
  if(!document.hidden)try{
    const answer=await fetch(now,{cache:"no-store"});
    if(!answer.ok)throw new Error(answer.status);
    const text=await answer.text();
    if(text!==last){main.innerHTML=text;last=text}
    lost.hidden=true
  }catch{lost.hidden=false}
  setTimeout(renew,1500)
}
renew()
"""

POLICY = (
    "default-src 'none';img-src data:;style-src 'unsafe-inline';connect-src 'self';base-uri 'none';form-action 'none';"
    f"script-src 'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'"
)


class _Handler(RequestHandler):  # type: ignore[misc]  # distributed has no types
    """Answers with HTML that runs no script but the page's own."""

    def set_default_headers(self) -> None:
        """Headers of every answer."""
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-store")

    def fragment(self) -> str:
        """What changes on the page."""
        return fragment(self.server.get_events(TOPIC), self.server)


class PageHandler(_Handler):
    """The whole page."""

    def get(self) -> None:
        """Answer a request."""
        self.write(whole_page(self.fragment(), SCRIPT))


class NowHandler(_Handler):
    """What changes on the page."""

    def get(self) -> None:
        """Answer a request."""
        self.write(self.fragment())


def add_page(dask_scheduler: Any) -> bool:
    """Add the page to a running scheduler, unless it has it.

    Parameters
    ----------
    dask_scheduler : distributed.Scheduler
        Named as `Client.run_on_scheduler` gives it.

    Returns
    -------
    bool
        Whether it has the page. Clusters with certificates have none, nor those that dkrr starts itself: their HTTP
        pages are switched off by an empty list of routes, since HTTP would answer without certificates.
    """
    if not dask.config.get("distributed.scheduler.http.routes"):
        return False
    application = dask_scheduler.http_application
    if application not in _with_page:
        _with_page.add(application)
        options = {"dask_server": dask_scheduler}
        # Any path before it: the scheduler does not tell the prefix that it was started with.
        routes = [(rf"(?:/[^/]+)*{PATH}{end}", cls, options) for end, cls in (("", PageHandler), ("/now", NowHandler))]
        application.add_handlers(".*$", routes)
    return True
