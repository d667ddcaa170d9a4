#!/usr/bin/env python3
"""A client of sessions (docs/wire.md): starts one, talks, loses its connection in the middle of a turn, comes back,
and goes on in a fresh sandbox. In the end it has every event of the log, each of them once.

    BASTIDE_SERVER=http://127.0.0.1:8080 BASTIDE_API_KEY=… python3 client.py

It needs `websockets` (pip). The agent is `mock`, which needs no model.
"""

import asyncio
import json
import os
import urllib.request

import websockets

SERVER = os.environ.get("BASTIDE_SERVER", "http://127.0.0.1:8080")
KEY = os.environ["BASTIDE_API_KEY"]


def call(method, path, body=None):
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(SERVER + path, data, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


class Session:
    def __init__(self, answer):
        self.answer = answer
        self.socket = None
        # All that a client has to keep.
        self.seen = 0

    async def events(self):
        """What happens, in order and once, over as many connections as it takes."""
        while True:
            url = f"{self.answer['connect_url']}?from={self.seen}"
            headers = {"Authorization": f"Bearer {self.answer['jwt']}"}
            try:
                async with websockets.connect(url, additional_headers=headers) as self.socket:
                    async for message in self.socket:
                        frame = json.loads(message) if isinstance(message, str) else {}
                        # Without a sequence it is beside the log; bytes are an image of a display.
                        if "sequence" in frame:
                            self.seen = frame["sequence"]
                            yield frame
            except websockets.ConnectionClosed:
                pass  # it broke
            except (OSError, websockets.InvalidHandshake) as error:
                print("not connected:", error)
            if self.socket and self.socket.close_code == 1011:
                raise ConnectionError(self.socket.close_reason)  # displaced, or nothing runs: resume it
            await asyncio.sleep(0.2)

    async def say(self, text):
        await self.socket.send(json.dumps({"type": "message", "message": text}))


def is_ready(event):
    """Whether the agent waits for a message. Agents with a model end a turn with the status `turn.completed`."""
    item = event["data"].get("item", {})
    return event["type"] == "item.completed" and "Mock agent ready" in json.dumps(item)


async def turn(events, log):
    async for event in events:
        log.append(event)
        print(event["sequence"], event["type"])
        if is_ready(event):
            return


async def main():
    started = call("POST", "/v1/sessions", {
        "agent": {"kind": "mock"}, "template": "standard", "llm": {"vendor": "openai"},
        "user_id": call("GET", "/v1/tenants/me")["tenant_id"],
    })
    session, log = Session(started), []
    events = session.events()
    await turn(events, log)

    await session.say("tool")
    await turn(events, log)

    await session.say("demo")
    log.append(await anext(events))
    session.socket.transport.abort()
    await turn(events, log)

    resume = {"chat_session_id": started["chat_session_id"]}
    session.answer = call("POST", "/v1/sessions/resume", resume)
    log.append(await anext(events))  # session.started: another life
    await session.say("echo the same conversation")
    await turn(events, log)
    await events.aclose()

    path = f"/v1/sessions/{started['chat_session_id']}"
    logged = call("GET", f"{path}/events?to={session.seen}")["events"]
    assert log == logged, "events were lost, or came twice"
    print(len(log), "events: none lost, none twice")
    call("DELETE", path)


asyncio.run(main())
