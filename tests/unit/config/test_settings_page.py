"""The page of all settings is what the code says."""

from __future__ import annotations

import importlib.util
import re

from support import ROOT

from fedcue.config.recipes import NAMED
from fedcue.config.sections import CommonSettings


def made() -> str:
    spec = importlib.util.spec_from_file_location("settings_page", ROOT / "scripts" / "settings_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.page())


def test_it_is_up_to_date() -> None:
    shown = (ROOT / "docs" / "settings.md").read_text()
    assert shown == made(), "write it anew: python scripts/settings_page.py"


def test_it_has_every_setting_of_every_part() -> None:
    found = set(re.findall(r"^\| `([^`]+)`", made(), re.MULTILINE))
    for section, registry in NAMED.items():
        for name in registry.builtin if registry else ():
            assert {f"{section}.{key}" for key in registry.get(name).model_fields} <= found, name
    for key, field in CommonSettings.model_fields.items():
        inner = (
            getattr(field.annotation, "model_fields", None) if isinstance(field.annotation, type) else None
        )
        assert ({f"{key}.{one}" for one in inner} if inner else {key}) <= found


def test_the_site_links_to_it() -> None:
    assert "settings.md" in (ROOT / "mkdocs.yml").read_text()
