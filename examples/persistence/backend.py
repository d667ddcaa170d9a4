#!/usr/bin/env python3
"""A backend that keeps conversations of agents: the wire contract of docs/persistence.md in one file.

    PERSISTENCE_AUTH='Bearer sk_1' python3 backend.py --listen 127.0.0.1:7000 --database kept.db

Only the standard library. For HTTPS give it --cert and --key, or put it behind a proxy that has them.
"""

import argparse
import hmac
import json
import os
import sqlite3
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

BODY_BYTES_MAX = 64 << 20
SCHEMA = """CREATE TABLE IF NOT EXISTS events (
    conversation TEXT NOT NULL, sequence INTEGER NOT NULL, event TEXT NOT NULL,
    PRIMARY KEY (conversation, sequence))"""


def connect(path):
    database = sqlite3.connect(path, timeout=30, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    # What is answered has to survive a loss of power.
    database.execute("PRAGMA synchronous = FULL")
    return database


def last_sequence(database, conversation):
    sql = "SELECT coalesce(max(sequence), 0) FROM events WHERE conversation = ?"
    return database.execute(sql, [conversation]).fetchone()[0]


class Backend(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        if length > BODY_BYTES_MAX:
            self.close_connection = True
            return self.answer(413)
        body = self.rfile.read(length)
        if not self.may():
            return self.answer(401)
        try:
            batch = json.loads(body)
            conversation = batch["conversation"]
            events = [(one["sequence"], json.dumps(one["event"])) for one in batch["events"]]
        except (ValueError, KeyError, TypeError):
            return self.answer(400)
        database = connect(self.server.database)
        try:
            database.execute("BEGIN IMMEDIATE")
            last = last_sequence(database, conversation)
            # A batch may come again, and then with nothing new in it.
            new = [(conversation, number, event) for number, event in events if number > last]
            database.executemany("INSERT INTO events VALUES (?, ?, ?)", new)
            database.execute("COMMIT")
        finally:
            database.close()
        self.answer(204)

    def do_GET(self):
        if not self.may():
            return self.answer(401)
        query = parse_qs(urlsplit(self.path).query)
        try:
            conversation = query["conversation"][0]
            after, limit = int(query["after"][0]), int(query["limit"][0])
        except (KeyError, ValueError):
            return self.answer(400)
        database = connect(self.server.database)
        try:
            last = last_sequence(database, conversation)
            sql = """SELECT sequence, event FROM events WHERE conversation = ? AND sequence > ?
                     ORDER BY sequence LIMIT ?"""
            rows = database.execute(sql, [conversation, after, min(max(limit, 0), 1000)]).fetchall()
        finally:
            database.close()
        if last == 0:
            return self.answer(404)
        events = [{"sequence": number, "event": json.loads(event)} for number, event in rows]
        self.answer(200, {"last_sequence": last, "events": events})

    def may(self):
        sent = self.headers.get("Authorization") or ""
        return hmac.compare_digest(sent.encode(), self.server.auth.encode())

    def answer(self, status, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        # A 204 has no body, so it has no length either.
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        pass


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--listen", default="127.0.0.1:7000", metavar="ADDR:PORT")
    options.add_argument("--database", default="kept.db", metavar="FILE")
    options.add_argument("--cert", metavar="FILE")
    options.add_argument("--key", metavar="FILE")
    options = options.parse_args()
    host, port = options.listen.rsplit(":", 1)
    server = ThreadingHTTPServer((host, int(port)), Backend)
    server.auth = os.environ.get("PERSISTENCE_AUTH", "")
    server.database = options.database
    database = connect(options.database)
    database.execute(SCHEMA)
    database.close()
    if options.cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.cert, options.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(f"listening on {host}:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
