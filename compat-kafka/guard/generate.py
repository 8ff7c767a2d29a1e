#!/usr/bin/env python3
"""Writes guard/src/table.rs: the shape of every request a Kafka client may send to a broker.

    mvn dependency:copy -Dartifact=org.apache.kafka:kafka-clients:4.1.0 -DoutputDirectory=/tmp
    python3 compat-kafka/guard/generate.py /tmp/kafka-clients-4.1.0.jar

The facts are the message schemas in Kafka's own client jar (`common/message/*Request.json`). Take the
jar of the Kafka version whose messages the `kafka-protocol` crate was generated from: for 0.18 that
is 4.1.0. Tests compare the table with the crate, version by version, so a wrong jar does not pass.

Left out: requests no broker listener accepts (KRaft's own), those `kafka-protocol` lacks, and each
newest version that Kafka calls unstable: `kafka-protocol` does not decode it, though for these its
`ApiKey::valid_versions` says so.
Whether a field may be null is left out too: a null announces nothing, and the decoder refuses it
where it may not stand. Only a struct's null counts, for such a struct has a byte of its own.
"""

import json
import pathlib
import re
import sys
import zipfile

LACKING = {"StreamsGroupHeartbeat", "StreamsGroupDescribe"}
SCALARS = ["bool", "int8", "int16", "uint16", "int32", "uint32", "int64", "float64", "uuid", "string"]
SCALARS += ["bytes", "records"]
EVER = 1 << 15
WIDTH = 100
OUTPUT = pathlib.Path(__file__).resolve().parent / "src/table.rs"

HEAD = """\
//! The shape of every request a Kafka client may send to a broker, and of the header before it.
//!
//! Written by `compat-kafka/guard/generate.py` from the message schemas of Kafka {kafka}: edit that.
//! A field without `since` or `until` is there in all versions of what it stands in.

use kafka_protocol::messages::*;

use super::schema::*;

/// What precedes the body: header version 1, or 2 where the request's version is flexible.
pub(super) static HEADER: RequestSchemaSchema = {header};

/// Sorted by API key.
pub(super) static REQUESTS: &[RequestSchema] = &[
{requests}
];
"""


def snake(name):
    """As the generator of `kafka-protocol` names modules and fields."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def versions(text):
    """`4`, `0-12`, `3+` or `none`, as an inclusive range."""
    if text == "none":
        return EVER, -1
    if text.endswith("+"):
        return int(text[:-1]), EVER
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def meet(one, other):
    return max(one[0], other[0]), min(one[1], other[1])


class Schema:
    def __init__(self, message):
        self.message = message
        self.module = snake(message["name"])
        self.structs = {s["name"]: s["fields"] for s in message.get("commonStructs", [])}

    def fields(self, fields, parent, indent):
        """The lines of a list of fields, as many of the short ones to a line as fit."""
        lines = []
        for field in fields:
            present = meet(versions(field["versions"]), parent)
            if present[0] > present[1]:
                continue
            text = self.field(field, present, parent, indent)
            joined = lines and f"{lines[-1]} {text.strip()}"
            if joined and "\n" not in joined and len(joined) <= WIDTH:
                lines[-1] = joined
            else:
                lines.append(text)
        return "\n".join(lines)

    def field(self, field, present, parent, indent):
        call, fields = self.call(field, present)
        marks = ""
        if present[0] > parent[0]:
            marks += f".since({present[0]})"
        if present[1] < parent[1]:
            marks += f".until({present[1]})"
        if "tag" in field:
            assert field["taggedVersions"] == field["versions"], field
            marks += f".tag({field['tag']})"
        pad = "    " * indent
        if fields is None:
            return f"{pad}{call}){marks},"
        return f"{pad}{call}, &[\n{self.fields(fields, present, indent + 1)}\n{pad}]){marks},"

    def call(self, field, present):
        """The constructor of a field, and the fields of its struct, if it has one."""
        name, kind = snake(field["name"]), field["type"]
        if kind.startswith("[]"):
            element = kind[2:]
            if element in SCALARS:
                return f'{element}s("{name}"', None
            return f'array::<{self.module}::{element}>("{name}"', self.struct(field, element)
        if kind == "string" and field.get("flexibleVersions") == "none":
            return f'short_string("{name}"', None
        assert "flexibleVersions" not in field, field
        if kind in SCALARS:
            return f'{"bytes" if kind == "records" else kind}("{name}"', None
        nullable = meet(versions(field.get("nullableVersions", "none")), present)
        assert nullable in ((EVER, -1), present) or nullable[0] > nullable[1], field
        which = "nullable" if nullable == present else "inline"
        return f'{which}("{name}"', self.struct(field, kind)

    def struct(self, field, name):
        return field.get("fields") or self.structs[name]

    def request(self, indent=1):
        message = self.message
        low, high = versions(message["validVersions"])
        span = low, high - message.get("latestVersionUnstable", False)
        since = versions(message["flexibleVersions"])[0]
        flexible = "NEVER" if since == EVER else since
        name = message["name"].removesuffix("Request")
        key = message.get("apiKey", -1)
        head = f'request({key}, "{name}", {span}, {flexible}, &['
        pad = "    " * indent
        body = self.fields(message["fields"], span, indent + 1)
        return f"{pad}{head}\n{body}\n{pad}])" if body else f"{pad}{head}])"


def messages(jar):
    for path in jar.namelist():
        if re.fullmatch(r"common/message/\w*Request(Header)?\.json", path):
            lines = jar.read(path).decode().splitlines()
            yield json.loads("\n".join(l for l in lines if not l.lstrip().startswith("//")))


def served(message):
    name = message["name"].removesuffix("Request")
    return "broker" in message.get("listeners", []) and name not in LACKING


def main(path):
    kafka = re.search(r"([\d.]+)\.jar", path).group(1)
    with zipfile.ZipFile(path) as jar:
        found = list(messages(jar))
    header = next(Schema(m) for m in found if m["type"] == "header").request(0).strip()
    wanted = sorted(filter(served, found), key=lambda m: m["apiKey"])
    requests = "\n".join(Schema(m).request() + "," for m in wanted)
    OUTPUT.write_text(HEAD.format(kafka=kafka, header=header, requests=requests))


if __name__ == "__main__":
    main(*sys.argv[1:])
