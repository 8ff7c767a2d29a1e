"""The cases of a file that security.sh wrote: what rules allow is served, all else and every wrong login is refused."""

from pathlib import Path

from model import Entry
from scenario import Scenario, read_to
from security import Credentials
from steps import T0, Mismatch, equal, wait_until

RECORDS = 20
TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED = 29, 30


def run(make_client, steps, cases, run_id):
    for line in Path(cases).read_text().splitlines():
        expected, name, bootstrap, mechanism, trust, certificate, user, secret = (
            None if field == "-" else field for field in line.split())
        directory = Path(cases).parent
        credentials = Credentials(
            mechanism, user, secret and (directory / secret).read_text(), str(directory / f"{trust}.pem"),
            *[certificate and str(directory / f"{certificate}.{part}") for part in ("crt", "key")])
        if expected == "served":
            Access(make_client, bootstrap, credentials, steps, name, f"{name}-{run_id}").run()
        else:
            steps.step(f"{name} login-refused",
                       lambda: equal("error of", "SASL" if mechanism else "TLS", make_client.login_error(bootstrap, credentials)))


class Access:
    """One way to log in. Its topic and its group have the name that its rules are for."""

    def __init__(self, make_client, bootstrap, credentials, steps, name, topic):
        self._make_client = lambda: make_client(bootstrap, credentials)
        self._steps, self._name, self._topic = steps, name, topic
        self._client = None

    def run(self):
        def step(name, body, *args):
            self._steps.step(f"{self._name} {name}", lambda: body(*args))

        step("produce-and-consume", self._produce_and_consume)
        for topic in ("without-rule", "described"):
            step(f"produce-to-topic-{topic}", self._fails, TOPIC_AUTHORIZATION_FAILED, self._produce, topic)
            step(f"consume-topic-{topic}", self._fails, TOPIC_AUTHORIZATION_FAILED, self._consume, self._topic, topic)
        step("consume-in-group-without-rule", self._fails, GROUP_AUTHORIZATION_FAILED, self._consume, "without-rule", self._topic)

    def _produce_and_consume(self):
        self._client = self._make_client()
        scenario = Scenario(self._client, self._steps, self._topic)
        scenario.create(self._topic, 1)
        scenario.produce_pass("none", RECORDS)
        with self._client.consumer(self._topic) as member:
            member.subscribe(self._topic, paused=False)
            scenario.model.assert_equals(read_to(member, scenario.model.ends()))
            member.commit(scenario.model.ends())
        with self._client.consumer(self._topic) as reader:
            equal("committed offsets", scenario.model.ends(), reader.committed(self._topic, [0]))

    def _produce(self, topic):
        self._client.produce(topic, [Entry("k", "v", T0, ())], "none")

    def _consume(self, group, topic):
        with self._client.consumer(group) as member:
            member.subscribe(topic, paused=False)

            def polled():
                equal("records read", [], member.poll())
                self._client.raise_logged(topic)

            wait_until(f"an error for {topic}", polled)

    def _fails(self, code, body, *args):
        try:
            body(*args)
        except Mismatch:
            raise
        except Exception as problem:
            equal(f"error code of {problem!r}", code, self._client.error_code(problem))
        else:
            raise Mismatch(f"expected error code {code}, saw it succeed")
