"""Recipes and key=value: what is allowed, and what is said when it is not."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedcue.clients.federation import load_federation
from fedcue.config.layers import dump, load, load_folder, resolve
from fedcue.config.recipes import read_recipe, recipes
from fedcue.errors import ConfigError, printable
from fedcue.rounds.resume import default_folder


def test_overrides_are_dotted_and_typed() -> None:
    config = load(
        "default",
        ["rounds=7", "method.temperature=0.1", "method.layers=[1,2]", "partition.classes_per_client=2"],
    )
    assert config.rounds == 7
    assert config.method.temperature == 0.1
    assert config.method.layers == (1, 2)
    assert config.partition.classes_per_client == 2


def test_a_bare_name_is_short_for_the_name_key_and_drops_the_old_options() -> None:
    config = load(
        "default", ["method=fedvpt", "partition=dirichlet", "partition.alpha=0.3", "partition.clients=4"]
    )
    assert config.method.name == "fedvpt"
    assert dump(config)["partition"]["name"] == "dirichlet"


def test_the_same_name_keeps_the_recipes_options(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'data="digits"\n[method]\nname="pep"\ntemperature=0.5\n[partition]\nname="iid"\nclients=3\n'
    )
    assert load(recipe, ["method=pep"]).method.temperature == 0.5
    assert load(recipe, ["method=pep", "method.period=3"]).method.temperature == 0.5


def test_scale_profile_and_per_method_are_applied_in_order(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'data="digits"\nmethod="fedvpt"\nrounds=9\n[partition]\nname="iid"\nclients=3\n'
        "[scale.cpu]\nrounds=2\n[scale.cpu.training]\nepochs=1\n"
        "[per_method.fedvpt.training]\nprompt_lr=3.0\nhead_lr=3.0\n"
        "[scale.cpu.per_method.fedvpt.training]\nhead_lr=0.5\n"
    )
    assert load(recipe).rounds == 9
    assert load(recipe).training.head_lr == 3.0
    assert load(recipe, ["scale=cpu"]).training.head_lr == 0.5
    assert load(recipe, ["scale=cpu", "method=head"]).training.head_lr is None
    small = load(recipe, ["scale=cpu"])
    assert (small.rounds, small.training.epochs, small.training.prompt_lr) == (2, 1, 3.0)
    assert load(recipe, ["scale=cpu", "rounds=5", "training.prompt_lr=1"]).training.prompt_lr == 1
    assert load(recipe, ["method=head"]).training.prompt_lr is None
    with pytest.raises(ConfigError, match="Unknown scale 'gpu'. Known: cpu"):
        load(recipe, ["scale=gpu"])


@pytest.mark.parametrize(
    ("settings", "section", "option", "value"),
    [
        (["privacy.max_epsilon=1", "privacy=dp"], "privacy", "max_epsilon", 1.0),
        (["privacy.max_epsilon=1", "privacy.name=dp"], "privacy", "max_epsilon", 1.0),
        (["aggregate.attackers=1", "aggregate=trimmed_mean"], "aggregate", "attackers", 1),
        (["data.root=there", "data=cifar100"], "data", "root", Path("there").absolute()),
        (["method.prompts=3", "method=fedvpt"], "method", "prompts", 3),
    ],
)
def test_an_option_counts_whether_it_stands_before_or_behind_the_name(
    settings: list[str], section: str, option: str, value: object
) -> None:
    for given in (settings, settings[::-1]):
        assert getattr(getattr(load("default", given), section), option) == value


@pytest.mark.parametrize("recipe", ["default", "cifar100-pathological"])
def test_a_profile_that_is_asked_for_brings_its_rates(recipe: str) -> None:
    for more in ([], ["scale=cpu"] * (recipe != "default")):
        training = load(recipe, ["method=pfedpg", "profile=native", *more]).training
        assert (training.lr, training.head_lr, training.prompt_lr) == (0.25, None, None)
    training = load(
        recipe, ["method=pfedpg", "profile=native", "training.head_lr=2", "training.lr=3"]
    ).training
    assert (training.lr, training.head_lr, training.prompt_lr) == (3, 2, None)


def test_a_new_name_drops_the_options_a_method_has_in_the_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'data="digits"\nmethod="pep"\n[partition]\nname="pathological"\nclients=3\n'
        '[per_method.pep]\nprivacy="paper"\n"partition.classes_per_client"=2\n'
    )
    assert load(recipe).partition.classes_per_client == 2
    assert load(recipe, ["partition.clients=5", "partition=iid"]).partition.clients == 5
    assert load(recipe, ["privacy.max_epsilon=1", "privacy=dp"]).privacy.max_epsilon == 1


BAD = {
    "rouns=3": "Unknown key 'rouns'.*Did you mean 'rounds'",
    "rounds=many": "rounds='many'.*integer",
    "rounds=-1": "rounds=-1.*greater than or equal to 0",
    "warm_start=-3": "^warm_start=-3: input should be 'all', or input should be greater than 0.$",
    "method=fedvtp": "Unknown method 'fedvtp'.*Did you mean 'fedvpt'",
    "method.temperature=0": "method.temperature=0.*greater than 0",
    "method.temperature=nan": "method.temperature=nan.*finite",
    "method.tau=1": "Unknown key 'method.tau'. Known: .*method.temperature",
    "method.layers=[6,5]": "must be ascending",
    "method.layers=4": "method.layers=4 must be a list, such as",
    "scale=cpu": "Unknown scale 'cpu'. Known: none.",
    "method.layers=[-1]": "must be ascending",
    "data=digit": "Unknown dataset 'digit'.*Did you mean 'digits'",
    "partition=pathologic": "Unknown partition.*Did you mean 'pathological'",
    "rounds": "not of the form key=value",
    "method=no.such.module:Thing": "cannot be imported",
    "method=fedcue.errors:FedcueError": "is not a method",
}


@pytest.mark.parametrize("override", BAD)
def test_mistakes_are_explained(override: str) -> None:
    with pytest.raises(ConfigError, match=BAD[override]):
        load("default", [override])


def test_all_mistakes_are_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load("default", ["rounds=x", "training.epochs=0", "metod=pep"])
    assert len(str(caught.value).splitlines()) == 3


def test_an_unknown_recipe_is_explained() -> None:
    with pytest.raises(ConfigError, match="Unknown recipe 'defalt'.*Did you mean 'default'.*A path"):
        load("defalt")


def test_a_file_that_is_not_toml_is_explained(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not readable TOML"):
        load(tmp_path / "r.toml")


def test_a_dumped_configuration_is_a_recipe_for_the_same_run(tmp_path: Path) -> None:
    config = load("default", ["seed=3", "method.layers=[2,3]"])
    (tmp_path / "config.toml").write_text(tomli_w.dumps({**dump(config), "environment": {"torch": "x"}}))
    assert dump(load(tmp_path / "config.toml")) == dump(config)


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_valid_at_every_scale_and_says_how_to_run_it(name: str) -> None:
    text = recipes()[name].read_text()
    assert text.splitlines()[0].startswith("# fedcue "), "line 1 is the command that runs it"
    assert tomllib.loads(text)["description"]
    found, settings = read_recipe(name)
    named = {"data": "digits", "partition": "iid", "partition.clients": 5} if name == "own" else {}
    for scale in [None, *settings.get("scale", {})]:
        resolve(settings, {"scale": scale, **named} if scale else named, name)
    assert found == name


def test_a_recipe_can_build_on_another_one(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'base="default"\nrounds=3\n[partition]\nname="iid"\nclients=4\n[compare]\nmethods=["pep"]\n'
    )
    name, settings = read_recipe(recipe)
    assert (name, settings["compare"]) == ("r", {"methods": ["pep"]})
    assert "description" not in settings
    config = load(recipe)
    assert (config.rounds, config.partition.clients, config.training.prompt_lr) == (3, 4, 1.0)
    (tmp_path / "s.toml").write_text('base="r.toml"\nrounds=2\n')
    assert load(tmp_path / "s.toml").partition.clients == 4


def test_a_recipe_that_builds_on_itself_or_on_nothing_is_explained(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('base="b.toml"')
    (tmp_path / "b.toml").write_text('base="a.toml"')
    with pytest.raises(ConfigError, match="built on itself"):
        load(tmp_path / "a.toml")
    (tmp_path / "c.toml").write_text('base="nothing"')
    with pytest.raises(ConfigError, match="Unknown recipe"):
        load(tmp_path / "c.toml")


def test_another_backbone_keeps_the_image_size() -> None:
    config = load("default", ["backbone.image_size=128", "backbone=FOLDER"])
    assert (config.backbone.name, config.backbone.image_size) == ("FOLDER", 128)


@pytest.mark.parametrize(
    "table",
    [
        "scale = 3",
        "per_method = 3",
        "per_method = {pep = 3}",
        "scale = {cpu = 3}",
        "scale = {cpu = {per_method = 3}}",
    ],
)
def test_what_should_be_a_table_and_is_not_is_explained(tmp_path: Path, table: str) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(f'{table}\nbase = "default"\n')
    with pytest.raises(ConfigError, match=r"must be a table|Unknown scale 'cpu'"):
        load(recipe, ["scale=cpu"] if "scale" in table else [])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("heldout.x=1", "heldout"),
        (f"rounds={'9' * 5000}", "rounds="),
        (f"seed=0x{'f' * 5000}", "at most 64 bits"),
        (f"{'a.' * 3000}b=1", "nested too deeply|Unknown key"),
        ("rounds=3\nseed=4", "rounds='3"),
        ("data=fedcue.methods.pep:PEP", "is not a dataset"),
        ("method=fedcue.methods.base:Method", "with a name"),
        ("data.root=\udcff", "not valid UTF-8"),
    ],
)
def test_strange_settings_are_explained_in_a_few_words(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load("default", [override])
    assert len(str(caught.value)) < 3000


def test_a_recipe_cannot_choose_where_its_run_is_written(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('base = "default"\nrecipe = "../../../outside"\n')
    folder = default_folder(load(recipe))
    assert folder.parent == Path("runs")
    assert ".." not in folder.parts


def test_a_device_that_is_not_there_is_explained() -> None:
    with pytest.raises(ConfigError, match="device='gpu' cannot be used here.*device=cpu"):
        load_federation(load("default", ["device=gpu"]))


def test_names_from_data_do_not_steer_the_terminal() -> None:
    assert printable("a\x1b[31m\u202eb") == "a\\x1b[31m\\u202eb"


@pytest.mark.parametrize(("known", "expected"), [(True, "bfloat16"), (False, "float32"), (None, "float32")])
def test_auto_precision_is_settled_once_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, known: bool | None, expected: str
) -> None:
    monkeypatch.setattr("fedcue.model.prompted.has_bfloat16", lambda device: known)
    assert load("cifar100-pathological").precision == expected
    assert dump(load("default", ["precision=auto"]))["precision"] == expected
    assert load("cifar100-pathological", ["precision=float32"]).precision == "float32"
    assert load("default").precision == "float32"


def test_auto_precision_on_a_device_that_is_not_there_is_left_to_the_check_of_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(device: str) -> bool:
        raise RuntimeError("no such device")

    monkeypatch.setattr("fedcue.model.prompted.has_bfloat16", fails)
    assert load("default", ["precision=auto", "device=cuda:7"]).precision == "float32"


def test_every_recipe_with_a_real_backbone_is_fast_by_default() -> None:
    for name in recipes():
        settings = read_recipe(name)[1]
        backbone = (
            settings["backbone"] if isinstance(settings["backbone"], str) else settings["backbone"]["name"]
        )
        assert settings.get("precision", "float32") == ("float32" if backbone == "embedded" else "auto"), name


def test_the_number_of_workers_is_one_setting_whatever_the_engine() -> None:
    assert load("default", ["workers=3"]).workers == load("default", ["engine.workers=3"]).workers == 3
    config = load("default", ["engine=ray", "engine.workers=2", "engine.gpus_per_worker=0.25"])
    assert (config.engine.name, config.workers, config.engine.gpus_per_worker) == ("ray", 2, 0.25)
    assert "workers" not in dump(config)["engine"]
    with pytest.raises(ConfigError, match=r"engine.cpus_per_worker.*share up to 1 or a whole number"):
        load("default", ["engine.cpus_per_worker=1.5"])


def test_no_folder_says_which_cluster_is_joined(tmp_path: Path) -> None:
    settings = dump(load("default", ["engine=ray", "engine.address=stranger:6379"]))
    (tmp_path / "config.toml").write_text(tomli_w.dumps(settings))
    assert load_folder(tmp_path).engine.address is None
    assert load_folder(tmp_path, {"engine.address": "ours:6379"}).engine.address == "ours:6379"


@pytest.mark.parametrize("backbone", ["", 'backbone="embedded"\n'])
def test_under_privacy_features_have_the_length_that_statistics_are_clipped_to(
    tmp_path: Path, backbone: str
) -> None:
    """Whether the recipe names a backbone or not; a length that is given stands, and so it is at resuming."""
    recipe = tmp_path / "r.toml"
    recipe.write_text(f'data="digits"\nmethod="ncm"\npartition.name="iid"\npartition.clients=3\n{backbone}')
    assert load(recipe).backbone.feature_norm is None
    assert load(recipe, ["privacy=dp", "method=pep"]).backbone.feature_norm is None
    private = load(recipe, ["privacy=dp"])
    assert private.backbone.feature_norm == 1.0
    assert load(recipe, ["privacy=dp", "backbone.feature_norm=3"]).backbone.feature_norm == 3.0
    assert resolve(dump(private)) == private


def test_a_setting_of_a_section_is_found_without_it() -> None:
    with pytest.raises(ConfigError, match=r"Unknown key 'image_size'.* There is backbone\.image_size\.$"):
        load("default", ["image_size=32"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"overrides": "rounds=1"}, r'Settings are a list of texts, such as \["rounds=20"'),
        ({"overrides": {"rounds": 1}}, "Settings are a list of texts"),
        (
            {"data": "my-pictures"},
            r"'my-pictures' is not what fedcue\.from_examples returns.*data\.root=FOLDER",
        ),
    ],
)
def test_what_is_easily_mistaken_in_python_is_said(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("default", **given)


@pytest.mark.parametrize("privacy", ["", 'privacy="none"\n', 'privacy.name="dp"\nprivacy.max_epsilon=3\n'])
def test_under_privacy_a_head_of_statistics_has_most_of_the_budget(tmp_path: Path, privacy: str) -> None:
    """Whatever privacy the recipe names; a share that is given stands, and other methods have their half."""
    recipe = tmp_path / "r.toml"
    recipe.write_text(f'data="digits"\nmethod="cue"\npartition.name="iid"\npartition.clients=3\n{privacy}')
    private = load(recipe, ["privacy=dp"])
    assert private.privacy.head_share == 0.9
    assert load(recipe, ["privacy=dp", "privacy.head_share=0.3"]).privacy.head_share == 0.3
    assert load(recipe, ["privacy=dp", "method=pep"]).privacy.head_share == 0.5
    assert resolve(dump(private)) == private


def test_a_long_import_path_does_not_make_a_long_message() -> None:
    with pytest.raises(ConfigError, match="cannot be imported") as refused:
        load("default", [f"method=no.{'x' * 9000}:Thing"])
    assert len(str(refused.value)) < 1000
