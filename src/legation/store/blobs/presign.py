"""A presigned S3 address with the answer's headers in it (AWS Signature Version 4, query form).

`obstore` signs an address but cannot add `response-content-disposition`; this takes the address it signed, adds
to it and signs again. Day, region and key id are read from the address itself.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from urllib.parse import parse_qsl, quote, urlsplit

from legation.secret import Secret


def with_answer(url: str, headers: Mapping[str, str], secret_key: Secret) -> str:
    """`headers` by their small names, such as `content-type`: what S3 answers with."""
    address = urlsplit(url)
    query = dict(parse_qsl(address.query, keep_blank_values=True))
    del query["X-Amz-Signature"]
    query |= {f"response-{name}": value for name, value in headers.items()}
    canonical = "&".join(f"{_escaped(name)}={_escaped(query[name])}" for name in sorted(query))
    request = f"GET\n{address.path}\n{canonical}\nhost:{address.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
    _, scope = query["X-Amz-Credential"].split("/", 1)
    digest = sha256(request.encode()).hexdigest()
    message = f"AWS4-HMAC-SHA256\n{query['X-Amz-Date']}\n{scope}\n{digest}"
    signature = hmac.digest(_signing_key(scope, secret_key), message.encode(), "sha256").hex()
    return f"{address.scheme}://{address.netloc}{address.path}?{canonical}&X-Amz-Signature={signature}"


def _signing_key(scope: str, secret_key: Secret) -> bytes:
    key = b"AWS4" + secret_key.reveal().encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _escaped(text: str) -> str:
    return quote(text, safe="-_.~")
