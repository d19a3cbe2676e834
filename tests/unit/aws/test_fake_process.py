from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import boto3
import pytest

from corald.market.faults import Call
from corald.market.ledger import Effect, Ledger

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def fake(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    command = [sys.executable, "-m", "corald_aws.fake", "--ledger", str(ledger), "--supply", "1"]
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "providers")])
    environment = os.environ | {"PYTHONPATH": path}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        url = json.loads(process.stdout.readline())["url"]
        yield url, ledger
        process.terminate()
        assert process.wait(10) == 0


def control(url, **order):
    request = urllib.request.Request(f"{url}/_control", data=json.dumps(order).encode())
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())


def test_the_fakes_ledger_is_readable_from_outside_while_it_runs(fake, credentials):
    url, path = fake
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=url)
    call = {
        "ImageId": "ami-1",
        "InstanceType": "g6.xlarge",
        "SubnetId": "subnet-use1-az1",
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": "t-1",
    }
    born = client.run_instances(**call)["Instances"][0]["InstanceId"]
    ledger = Ledger.read(path.read_text().splitlines(keepends=True))
    assert ledger.machines_by_token() == {"t-1": (born,)}
    assert [entry.token for entry in ledger.calls(Call.LAUNCH)] == ["t-1"]
    assert ledger.usd_per_hour == pytest.approx(0.8048)

    control(url, do="advance", seconds=100)
    control(url, do="interrupt", instance=born, notice_seconds=120)
    control(url, do="advance", seconds=200)
    (machine,) = control(url, do="machines")["machines"]
    assert machine["state"] == "terminated"
    ledger = Ledger.read(path.read_text().splitlines(keepends=True))
    assert [entry.what for entry in ledger.effects()] == [
        Effect.LAUNCHED,
        Effect.RUNNING,
        Effect.NOTICED,
        Effect.SHUTTING_DOWN,
        Effect.TERMINATED,
    ]
    client.close()
