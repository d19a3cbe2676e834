"""Settings from files: what is accepted, and how a mistake is told."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from pydantic import BaseModel

from corald.config.faults import _model_in
from corald.config.ground import check_against_catalog
from corald.config.schema import ConfigFile
from corald.config.settings import load_settings
from corald.config.sources import presets
from corald.config.units import format_duration, parse_duration
from corald.config.values import needs_restart
from corald.errors import ConfigError
from corald.model.hardware import Catalog
from corald.model.policy import Rules, SpotUse

EXAMPLE = Path(__file__).parents[3] / "config.example.toml"
POLICY = """
[[policies]]
model = "{model}"
slo = {{ ttft_ms = 1000, tpot_ms = 50 }}
workload = {{ input_tokens_mean = 100, input_tokens_p95 = 300, output_tokens_mean = 50, output_tokens_p95 = 90 }}
{more}
"""  # noqa: E501  # inline tables cannot span lines
MINIMAL = 'cluster = "test"\n[providers.sim]\nplugin = "simulated"\n'


def policy(model: str = "phi-4", more: str = "") -> str:
    return POLICY.format(model=model, more=more)


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "corald.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o640)
        return path

    return write


def faults_of(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    return str(caught.value).replace(f"{path.parent}/", "").splitlines()


def test_the_example_loads_and_every_value_in_it_is_the_default(write) -> None:
    shown = load_settings(write(EXAMPLE.read_text()))
    bare = load_settings(write(MINIMAL, "bare.toml"))
    assert shown.policies.rules == bare.policies.rules == Rules()
    for name in ("state_dir", "catalog", "library", "http", "log", "kafka", "events", "observe"):
        assert getattr(shown, name) == getattr(bare, name)


def test_the_example_s_policy_is_the_default_policy(write) -> None:
    shown = load_settings(write(EXAMPLE.read_text())).policies.models["qwen3-32b"]
    required = {"model", "slo", "workload"}
    assert all(
        getattr(shown, item.name) == item.default
        for item in fields(shown)
        if item.name not in required
    )


def test_the_example_shows_every_key_and_unset_ones_as_comments() -> None:
    text = re.sub(r"^#(?=\[|[a-z_]+ = )", "", EXAMPLE.read_text(), flags=re.MULTILINE)
    data = tomllib.loads(text)
    ConfigFile.model_validate(data)
    assert list(missing_keys(ConfigFile, data)) == []


def missing_keys(schema: type[BaseModel], data: dict, path: str = ""):
    for name, field in schema.model_fields.items():
        if name not in data:
            yield f"{path}{name}"
        elif (inner := _model_in(field.annotation)) is not None:
            value = data[name]
            tables = value if isinstance(value, list) else [value]
            if name == "providers":
                tables = list(value.values())
            for table in tables:
                yield from missing_keys(inner, table, f"{path}{name}.")


def test_every_rule_can_be_set(write) -> None:
    changes = {
        "[budget]": "usd_per_hour = 7.0\nusd_per_day = 8.0",
        "[disruption]": 'max_share = 0.2\nmax_terminations = 9\nwindow = "11m"\n'
        'freeze_unready_share = 0.3\nfreeze_unready_count = 4\nmin_life = "16m"',
        "[switching]": 'min_saving = 0.03\namortize = "2h"\nboot = "3m"\nload_gib_per_second = 2.0',
        "[solver]": 'gap = 0.01\ndeadline = "21s"\ndebounce = "6s"\nresolve_every = "6m"',
        "[demand]": 'stale_after = "91s"\nforget_after = "1d"\nmax_step_replicas = 51\n'
        'epoch_reset = "7m"',
        "[prices]": 'stale_after = "3h"\nexpire_after = "3d"',
        "[fallback]": 'default_availability = 9\nstockout = "4m"\nstockout_max = "31m"\n'
        'quota = "16m"\ncircuit_failures = 4\ncircuit = "6m"\ncircuit_max = "31m"',
        "[machines]": 'launch_deadline = "6m"\nready_deadline = "21m"\ngang_hold = "11m"\n'
        'lost_after = "4m"\ngone_age = "11m"\ngone_gap = "2m"\norphan_grace = "3m"\n'
        'stuck_terminating = "16m"',
        "[drain]": 'route_propagation = "6s"\nnotice_margin = "11s"',
    }
    top = 'cluster = "test"\norphans = "report"\norphan_models = "drain"\n'
    top += "paused = true\ndry_run = true\n"
    tables = "\n".join(f"{name}\n{keys}" for name, keys in changes.items())
    path = write(f'{top}[providers.sim]\nplugin = "simulated"\n{tables}\n')
    rules = load_settings(path).policies.rules
    assert [f.name for f in fields(Rules) if getattr(rules, f.name) == f.default] == []


def test_an_unknown_key_is_told_with_file_line_path_and_the_likely_key(write) -> None:
    path = write(MINIMAL + policy(more="min_replicsa = 1") + "[solver]\ngapp = 0.1\n")
    assert faults_of(path) == [
        'corald.toml:9: policies[0].min_replicsa: unknown key; did you mean "min_replicas"?',
        'corald.toml:11: solver.gapp: unknown key; did you mean "gap"?',
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('min_replicas = "2"', "min_replicas: should be a valid integer"),
        ("min_replicas = true", "min_replicas: should be a valid integer"),
        ("headroom = nan", "headroom: should be a finite number"),
        ("scale_down_delay = 600", "scale_down_delay: a duration is a string with units"),
        ('scale_down_delay = "10 minutes"', "scale_down_delay: a duration is a string with units"),
        ('scale_down_delay = "10m!"', 'scale_down_delay: "10m!" is no duration'),
        ('scale_down_delay = "59s"', "scale_down_delay: 59s is shorter than demand.sample_window"),
        ('spot = "maybe"', "spot: should be 'only', 'prefer' or 'never'"),
        ("min_replicas = 3\nmax_replicas = 2", "min_replicas: exceeds max_replicas (2)"),
        ("on_demand_base = 1", "on_demand_base: is not in force in this version"),
        ('extends = "cost-frist"', 'extends: no preset is called "cost-frist"; did you mean'),
        ('image = "a; rm -rf /"', "image: must be the name of an image"),
        (
            'engine_args = ["a\\nb"]',
            "engine_args[0]: must be 1 to 1024 characters",
        ),
    ],
)
def test_a_wrong_value_in_a_policy_is_told_with_its_line(write, line: str, told: str) -> None:
    [fault] = faults_of(write(MINIMAL + policy(more=line)))
    assert re.fullmatch(rf"corald\.toml:(9|10): policies\[0\]\.{re.escape(told)}.*", fault)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[http]\nbind = "0.0.0.0:80"', "http.bind: only a loopback address"),
        ('[http]\nbind = "8550"', 'http.bind: write "127.0.0.1:8550"'),
        ('[http]\nbind = "unix:here"', "http.bind: a unix socket needs an absolute path"),
        ('[http]\ntoken = "hunter2"', "http.token: a secret is a reference"),
        (
            '[http]\ntoken = "file:/does/not/exist"',
            "http.token: secret file:/does/not/exist cannot",
        ),
        ('[http]\ntoken = "credential:x"', "http.token: secret credential:x needs a systemd unit"),
        ('[kafka]\nbootstrap = ["kafka.example:9092"]', 'kafka.security: "plaintext" sends'),
        ('[kafka]\nbootstrap = ["localhost"]', 'kafka.bootstrap[0]: "localhost" is not host:port'),
        ("[kafka]\nbootstrap = []", "kafka.bootstrap: Tuple should have at least 1 item"),
        (
            '[kafka]\nbootstrap = ["localhost:1"]\nsecurity = "sasl-ssl"',
            'kafka.security: "sasl-ssl" and no [kafka.sasl]',
        ),
        ('[prices]\nstale_after = "3d"', "prices.stale_after: 3d must not exceed"),
        ("[providers.Big]\nplugin = 'x'", "providers.Big: must be at most 63 small letters"),
        ('[events]\npath = "events"', 'events.path: must be an absolute path, such as "/var'),
        (
            '[kafka]\nbootstrap = ["localhost:1"]\ntopics = { demand = "a b" }',
            "kafka.topics.demand: must be the name of a topic",
        ),
        ("[providers.aws]\nregion = 'x'", "providers.aws.plugin: this key is required"),
    ],
)
def test_a_wrong_value_elsewhere_is_told_with_its_line(
    write, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    [fault] = faults_of(write(MINIMAL + text + "\n"))
    assert re.fullmatch(rf"corald\.toml:[4-6]: {re.escape(told)}.*", fault)


def test_a_secret_written_in_clear_is_not_repeated_in_the_complaint(write) -> None:
    text = '[http]\ntoken = "hunter2"\n[kafka]\nbootstrap = ["localhost:1"]\n'
    text += '[kafka.sasl]\nusername = "u"\npassword = 42\npasword = "hunter2"\n'
    faults = faults_of(write(MINIMAL + text))
    assert len(faults) == 3
    assert "hunter2" not in "".join(faults)


def test_a_syntax_error_is_told_with_its_line(write) -> None:
    assert faults_of(write('cluster = "x"\n[http\n'))[0].startswith("corald.toml:2: ")
    assert faults_of(write('cluster = "x'))[0].startswith("corald.toml:1: ")


def test_all_faults_of_all_files_are_told_at_once(write) -> None:
    path = write('clutser = "x"\n')
    write("[[policies]]\nmodel = 3\n", "policies.d/10-a.toml")
    write("not toml", "policies.d/20-b.toml")
    text = "\n".join(faults_of(path))
    assert all(
        part in text for part in ("clutser", "cluster: this key", "10-a.toml:2", "20-b.toml:1")
    )


def test_policies_come_from_the_file_and_from_drop_ins_in_lexical_order(write) -> None:
    path = write(MINIMAL + policy("a"))
    write(policy("c"), "policies.d/20.toml")
    write(policy("b"), "policies.d/10.toml")
    write("ignored", "policies.d/README")
    settings = load_settings(path)
    assert list(settings.policies.models) == ["a", "b", "c"]
    assert settings.policy_origins["b"].endswith("policies.d/10.toml:2")


def test_two_policies_of_one_model_are_refused(write) -> None:
    path = write(MINIMAL + policy("a"))
    write(policy("a"), "policies.d/10.toml")
    assert faults_of(path) == [
        'policies.d/10.toml:2: model "a" has a policy already at corald.toml:5'
    ]


def test_a_drop_in_may_hold_nothing_but_policies(write) -> None:
    path = write(MINIMAL)
    write("paused = true\n" + policy("a"), "policies.d/10.toml")
    assert faults_of(path) == ["policies.d/10.toml:1: paused: unknown key; known: policies"]


@pytest.mark.parametrize("name", ["cost-first", "latency-first", "spot-heavy", "frugal"])
def test_every_preset_can_be_extended_and_own_keys_win(write, name: str) -> None:
    own = policy(more=f'extends = "{name}"\nheadroom = 0.77')
    got = load_settings(write(MINIMAL + own)).policies.models["phi-4"]
    assert got.headroom == 0.77
    assert got.spot is SpotUse(presets()[name].get("spot", "prefer"))
    assert got.drain_deadline_seconds == parse_duration(
        presets()[name].get("drain_deadline", "10m")
    )


@pytest.mark.parametrize("mode", [0o660, 0o646])
def test_a_file_that_others_may_write_is_refused(write, mode: int) -> None:
    path = write(MINIMAL)
    path.chmod(mode)
    [fault] = faults_of(path)
    assert "others may write to it" in fault


def test_a_relative_state_directory_is_told_in_words(write) -> None:
    assert faults_of(write('state_dir = "state"\n' + MINIMAL)) == [
        'corald.toml:1: state_dir: must be an absolute path, such as "/var/lib/corald"'
    ]


def test_a_pipe_in_the_place_of_a_file_is_refused_without_waiting(write, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert faults_of(tmp_path / "pipe") == ["pipe: is not a file"]
    [fault] = faults_of(write(f'{MINIMAL}[http]\ntoken = "file:{tmp_path}/pipe"\n'))
    assert "pipe is not a file" in fault


def test_a_policy_directory_that_cannot_be_listed_is_not_taken_for_an_empty_one(write) -> None:
    write("", "policies.d")
    assert faults_of(write(MINIMAL)) == ["policies.d: cannot be read: Not a directory"]


def test_hidden_files_among_the_policies_are_an_editor_s(write, tmp_path: Path) -> None:
    write(policy(), "policies.d/a.toml")
    (tmp_path / "policies.d" / ".#b.toml").symlink_to("somebody@host")
    assert list(load_settings(write(MINIMAL)).policies.models) == ["phi-4"]


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    assert faults_of(tmp_path / "none.toml") == [
        "none.toml: cannot be read: No such file or directory"
    ]


def test_secrets_are_read_from_files_and_from_credentials(
    write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    for reference in (f"file:{secret}", "credential:token"):
        settings = load_settings(write(f'{MINIMAL}[http]\ntoken = "{reference}"\n'))
        assert settings.http.token is not None
        assert settings.http.token.read() == "s3cret"
        assert "s3cret" not in repr(settings)


def test_a_secret_file_that_others_may_read_is_refused(write, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    secret.chmod(0o644)
    [fault] = faults_of(write(f'{MINIMAL}[http]\ntoken = "file:{secret}"\n'))
    assert "chmod 0600" in fault


def test_outside_the_service_credentials_are_not_looked_for(
    write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    path = write(MINIMAL + '[http]\ntoken = "credential:x"\n')
    assert load_settings(path, in_service=False).http.token is not None


def test_provider_settings_are_handed_on_untouched(write) -> None:
    text = 'cluster = "test"\n[providers.a]\nplugin = "aws"\nregions = ["r1"]\ndeep = { x = 1 }\n'
    [provider] = load_settings(write(text)).providers
    assert (provider.name, provider.plugin) == ("a", "aws")
    assert provider.config == {"regions": ["r1"], "deep": {"x": 1}}


def test_names_are_checked_against_the_catalogue(write) -> None:
    path = write(MINIMAL + policy("phi-5", more='instance_types = ["g9.*"]'))
    catalog = Catalog({}, {}, {}, {"phi-4": None})  # type: ignore[dict-item]
    faults = check_against_catalog(load_settings(path), catalog)
    assert faults == (
        f'{path}:5: no model "phi-5"; did you mean "phi-4"?',
        f'{path}:5: instance_types: "g9.*" matches no instance type of the catalogue',
    )


def test_what_a_reload_cannot_change_is_named(write) -> None:
    old = load_settings(write(MINIMAL + policy()))
    moved = load_settings(write("\n\n" + MINIMAL + policy(more="priority = 3")))
    assert needs_restart(old, moved) == ()
    other = write(MINIMAL.replace("test", "other") + 'x = 1\n[http]\nbind = "127.0.0.1:1"\n')
    assert needs_restart(old, load_settings(other)) == ("cluster", "http", "providers")
    token = write(MINIMAL + '[http]\ntoken = "credential:x"\n' + policy())
    assert needs_restart(old, load_settings(token, in_service=False)) == ()


@pytest.mark.parametrize("text", ["0s", "500ms", "90s", "10m", "1h30m", "1d12h"])
def test_durations_are_read_and_written_alike(text: str) -> None:
    assert parse_duration(format_duration(parse_duration(text))) == parse_duration(text)


def test_durations_are_in_seconds() -> None:
    assert [parse_duration(t) for t in ("1h30m", "0.5s", "2d")] == [5400.0, 0.5, 172800.0]
