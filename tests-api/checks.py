"""What every answer has to hold."""

import schemathesis

# What a part that is not configured, or a program in a sandbox that does not listen, is answered with.
NOT_OURS = {501, 502, 504}


@schemathesis.check
def no_bug_of_ours(ctx, response, case):
    """Nothing that is sent may be answered with a 5xx that is not the caller's own doing."""
    status = response.status_code
    # The sandboxes of this test have no agent daemon, which a session is told.
    if status == 503 and "agent daemon does not listen" in response.text:
        return
    if status >= 500 and status not in NOT_OURS:
        raise AssertionError(f"{case.method} {case.path}: {status}: {response.text[:500]}")


@schemathesis.serializer("application/x-tar")
def any_bytes(ctx, value):
    """Archives are not made here: what is sent is no archive, and has to be refused as such."""
    return value if isinstance(value, bytes) else str(value).encode()
