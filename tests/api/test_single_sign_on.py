"""People sign in with OpenID Connect at a real proxy before a real service.

The proxy is Apache with mod_auth_openidc (Debian: apache2, libapache2-mod-auth-openidc), set to
send the headers of oauth2-proxy.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.fixtures.identity_provider import CLIENT, SECRET, IdentityProvider, identity_provider
from tests.fixtures.job_server import SWEEP, Place

pytestmark = pytest.mark.exhaustive
MODULES = Path("/usr/lib/apache2/modules")
LOADED = (
    "mpm_event", "authn_core", "authz_core", "authz_user", "headers", "proxy", "proxy_http",
    "auth_openidc",
)  # fmt: skip
CONFIGURATION = """\
ServerName 127.0.0.1
ServerRoot {folder}
Listen 127.0.0.1:{port}
PidFile {folder}/pid
Mutex file:{folder} default
ErrorLog {folder}/error.log
User www-data
{modules}
OIDCProviderMetadataURL {issuer}/.well-known/openid-configuration
OIDCClientID {client}
OIDCClientSecret {secret}
OIDCRedirectURI http://127.0.0.1:{port}/oauth2/callback
OIDCCryptoPassphrase {secret}
OIDCScope "openid email groups"
OIDCPKCEMethod S256
ProxyPreserveHost On
ProxyPass /oauth2 !
ProxyPass / {service}/ flushpackets=on
<Location />
  AuthType openid-connect
  Require valid-user
  RequestHeader unset X-Forwarded-Email
  RequestHeader unset X-Forwarded-User
  RequestHeader unset X-Forwarded-Groups
  RequestHeader set X-Forwarded-Email "expr=%{{reqenv:OIDC_CLAIM_email}}" env=OIDC_CLAIM_email
  RequestHeader set X-Forwarded-User "expr=%{{reqenv:OIDC_CLAIM_sub}}" env=OIDC_CLAIM_sub
  RequestHeader set X-Forwarded-Groups "expr=%{{reqenv:OIDC_CLAIM_groups}}" env=OIDC_CLAIM_groups
</Location>
<Location /v1/>
  OIDCUnAuthAction pass
</Location>
"""


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service that believes 127.0.0.1 who is signed in."""
    folder = tmp_path_factory.mktemp("signed") / "data"
    folder.mkdir()
    place = Place(
        folder, trusted_proxies="127.0.0.1", group_roles="sre=admin,ml-team=jobs,*=read",
        api_keys_sha256=f"robot:jobs:{hashlib.sha256(b'robot').hexdigest()}",
    )  # fmt: skip
    try:
        yield str(place.serve().http.base_url).rstrip("/")
    finally:
        place.clear()


@pytest.fixture(scope="module")
def proxy(
    tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider, service: str
) -> Iterator[str]:
    """The address of the proxy."""
    apache = shutil.which("apache2", path="/usr/sbin:/usr/bin")
    if apache is None or not (MODULES / "mod_auth_openidc.so").exists():
        pytest.skip("needs apache2 and libapache2-mod-auth-openidc")
    folder = tmp_path_factory.mktemp("proxy")
    for above in (folder, folder.parent, folder.parent.parent):
        above.chmod(0o755)  # the processes of the proxy are another user's
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    load = (f"LoadModule {name}_module {MODULES}/mod_{name}.so" for name in LOADED)
    text = CONFIGURATION.format(
        folder=folder, port=port, issuer=provider.issuer, client=CLIENT, secret=SECRET,
        service=service, modules="\n".join(load),
    )  # fmt: skip
    (folder / "apache.conf").write_text(text)
    running = subprocess.Popen([apache, "-DFOREGROUND", "-f", str(folder / "apache.conf")])
    try:
        deadline = time.monotonic() + 60
        while running.poll() is None and time.monotonic() < deadline:
            with socket.socket() as there:
                if there.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        assert running.poll() is None, (folder / "error.log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(60)


@contextmanager
def signed_in(
    proxy: str, provider: IdentityProvider, email: str, groups: list[str]
) -> Iterator[httpx.Client]:
    """The browser of somebody who has signed in for the page."""
    provider.user = {"sub": hashlib.sha256(email.encode()).hexdigest(), "email": email}
    if groups:
        provider.user["groups"] = groups
    with httpx.Client(base_url=proxy, follow_redirects=True, timeout=60) as browser:
        page = browser.get("/")
        assert page.status_code == 200, page.text
        assert "<title>" in page.text
        assert [one.status_code for one in page.history] == [302, 302, 302]
        yield browser


def test_who_is_not_signed_in_comes_with_a_key(proxy: str, provider: IdentityProvider) -> None:
    with httpx.Client(base_url=proxy, timeout=60) as program:
        assert program.get("/v1/jobs").status_code == 401
        forged = {"X-Forwarded-Email": "eve@example.org", "X-Forwarded-Groups": "sre"}
        assert program.get("/v1/jobs", headers=forged).status_code == 401
        assert program.get("/v1/jobs", headers={"X-API-Key": "robot"}).status_code == 200
        assert program.get("/").headers["location"].startswith(f"{provider.issuer}/authorize?")


def test_people_have_names_and_roles(proxy: str, provider: IdentityProvider) -> None:
    with (
        signed_in(proxy, provider, "ada@example.org", ["staff", "ml-team"]) as ada,
        signed_in(proxy, provider, "bob@example.org", ["ml-team"]) as bob,
        signed_in(proxy, provider, "guest@example.org", []) as guest,
        signed_in(proxy, provider, "eve@example.org", ["sre"]) as eve,
    ):
        job = ada.post("/v1/sweeps", json=SWEEP).json()
        path = job["links"]["self"]
        assert job["owner"] == "ada@example.org"
        with ada.stream("GET", job["links"]["events"]) as events:
            assert "event: done" in list(events.iter_lines())
        assert guest.get(path).json()["owner"] == "ada@example.org"
        assert guest.post("/v1/sweeps", json=SWEEP).status_code == 403
        forged = {"X-Forwarded-Email": "ada@example.org", "X-Forwarded-Groups": "sre"}
        assert guest.post("/v1/sweeps", json=SWEEP, headers=forged).status_code == 403
        assert bob.delete(path, headers=forged).status_code == 403
        assert eve.delete(path).status_code == 204


def test_who_signs_in_anew_is_somebody_else(proxy: str, provider: IdentityProvider) -> None:
    with signed_in(proxy, provider, "ada@example.org", ["ml-team"]) as browser:
        assert browser.post("/v1/sweeps", json=SWEEP).json()["owner"] == "ada@example.org"
        browser.cookies.clear()
        assert browser.get("/v1/jobs").status_code == 401
        provider.user = {"sub": "2", "email": "bob@example.org", "groups": ["ml-team"]}
        assert browser.get("/").status_code == 200
        assert browser.post("/v1/sweeps", json=SWEEP).json()["owner"] == "bob@example.org"
