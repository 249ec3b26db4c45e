"""Compares JSON with a golden file, which has the same structure with types instead of values.

A key that ends in "?" may be absent or null, as keys of objects always may, the key "*" stands for any key, and a list
has the structure of all its elements.
"""

import json
import os
import pathlib

FOLDER = pathlib.Path(__file__).parent / "golden"
# Objects with keys that depend on what has occurred.
MAPS = ("counters", "mean")


def structure(value, key=""):
    if isinstance(value, dict):
        if key in MAPS:
            return {"*": "number"}
        found = {key: structure(one, key) for key, one in value.items() if one is not None}
        return {key + "?" * isinstance(one, dict): one for key, one in found.items()}
    if isinstance(value, list):
        merged = []
        for one in value:
            merged = merge(merged, [structure(one)])
        return merged
    return {bool: "flag", str: "text"}.get(type(value), "number")


def merge(one, other):
    """What values of either structure have in common."""
    if isinstance(one, list) and isinstance(other, list):
        return [merge(one[0], other[0])] if one and other else one or other
    if isinstance(one, dict) and isinstance(other, dict):
        merged = {}
        for name in dict.fromkeys(key.rstrip("?") for key in [*one, *other]):
            always = name in one and name in other
            parts = [part.get(name, part.get(name + "?")) for part in (one, other)]
            both = [part for part in parts if part is not None]
            merged[name if always else name + "?"] = merge(*both) if len(both) == 2 else both[0]
        return merged
    if one != other:
        raise ValueError(f"{one} and {other}")
    return one


def differences(found, expected, path):
    if isinstance(found, list) and isinstance(expected, list):
        # An empty list of the golden file makes no claim.
        for one in found if expected else []:
            yield from differences(one, expected[0], path + "[]")
    elif isinstance(found, dict) and isinstance(expected, dict):
        for key, value in found.items():
            name = next((name for name in (key.rstrip("?"), key.rstrip("?") + "?", "*") if name in expected), None)
            if name is None:
                yield f"{path}.{key} is not in the golden file"
            elif key.endswith("?") and not name.endswith("?"):
                yield f"{path}.{key.rstrip('?')} is sometimes missing"
            else:
                yield from differences(value, expected[name], f"{path}.{key}")
        for name in expected:
            if not name.endswith("?") and name != "*" and name not in found and name + "?" not in found:
                yield f"{path}.{name} is missing"
    elif found != expected:
        yield f"{path} is {found}, not {expected}"


def check(test, verb, values):
    """Fails the test if the values of a verb differ in structure from its golden file."""
    file = FOLDER / f"{verb}.json"
    found = structure(values)
    if os.environ.get("CADRE_UPDATE_GOLDEN"):
        expected = json.loads(file.read_text()) if file.exists() else found[0]
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(merge(found[0], expected), indent=2) + "\n")
    test.assertEqual(list(differences(found, [json.loads(file.read_text())], verb)), [])
