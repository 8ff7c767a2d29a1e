"""The command line that the programs share."""

import argparse
import sys

import access
from scenario import Scenario
from security import Credentials
from steps import Steps


def main(make_client):
    parser = argparse.ArgumentParser(description=make_client.__doc__)
    at = parser.add_mutually_exclusive_group(required=True)
    at.add_argument("--bootstrap", metavar="HOST:PORT")
    at.add_argument("--cases", metavar="FILE", help="log in as each line of this file says (security.sh)")
    parser.add_argument("--run", required=True, metavar="ID", help="makes the names of topics and groups unique")
    parser.add_argument("--moments", action="store_true", help="also read topics as of a moment")
    options = parser.parse_args()
    steps = Steps()
    if options.cases:
        access.run(make_client, steps, options.cases, options.run)
    else:
        client = make_client(options.bootstrap, Credentials.from_environment())
        Scenario(client, steps, f"t-{client.name}-{options.run}").run(options.moments)
    sys.exit(1 if steps.failures else 0)
