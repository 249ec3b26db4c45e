"""JSON schemas of the custom resources of cert-manager, the Prometheus operator and JobSet.

    schema = Package(folder, "cert-manager.io/v1").schema("Issuer", definitions)

The Python packages that requirements.txt pins contain each resource as pydantic classes, which are generated from the
definition of the resource. This module reads the text of these classes; neither they nor pydantic run. An annotation
becomes a type, the arguments of Field() become constraints, a field without a default is required, and no other fields
are allowed. Types of Kubernetes refer to its own definitions.
"""

import ast
import re

# apiVersion -> the files with its classes, and with what their names begin.
SOURCES = {
    "cert-manager.io/v1": ("cloudcoil/models/cert_manager/v1.py", ""),
    "monitoring.coreos.com/v1": ("cloudcoil/models/prometheus_operator/v1.py", ""),
    "jobset.x-k8s.io/v1alpha2": ("kubeflow_trainer_api/models/jobset_v1alpha2_*.py", "JobsetV1alpha2"),
}
SCALARS = {"str": "string", "datetime": "string", "int": "integer", "bool": "boolean", "float": "number"}
CONSTRAINTS = {"pattern": "pattern", "min_length": "minLength", "ge": "minimum", "le": "maximum"}
CONSTRAINTS["max_length"] = "maxLength"


def field_arguments(node):
    """The constant arguments of Field(...); none if the node is something else."""
    if not isinstance(node, ast.Call):
        return {}
    return {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}


class Package:
    def __init__(self, folder, api_version):
        """`folder`: where the packages are installed."""
        self.definitions = ()
        pattern, self.prefix = SOURCES[api_version]
        self.classes = {}
        for file in sorted(folder.glob(pattern)):
            nodes = ast.parse(file.read_text()).body
            self.classes |= {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
        if not self.classes:
            raise FileNotFoundError(f"{folder}/{pattern}")

    def schema(self, kind, definitions):
        """None if there is no such kind. `definitions`: the names of those of Kubernetes."""
        self.definitions = definitions
        node = self.classes.get(self.prefix + kind)
        return node and self.of_class(node)

    def of_class(self, node):
        properties, required = {}, []
        for field in node.body:
            if not isinstance(field, ast.AnnAssign) or "ClassVar" in ast.unparse(field.annotation):
                continue
            calls = [field_arguments(part) for part in (field.value, *ast.walk(field.annotation))]
            name = next((call["alias"] for call in calls if "alias" in call), field.target.id)
            properties[name] = self.of_type(field.annotation)
            if field.value is None or (isinstance(field.value, ast.Call) and "default" not in calls[0]):
                required.append(name)
        if list(properties) == ["root"]:
            return properties["root"]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def of_type(self, node):
        """The schema of an annotation."""
        if isinstance(node, ast.Attribute):  # apimachinery.ObjectMeta
            return self.of_kubernetes(node.attr)
        if isinstance(node, ast.Name):
            name = node.id.removeprefix("Strict").lower()
            if name in SCALARS or name == "any":
                return {"type": SCALARS[name]} if name in SCALARS else {}
            return self.of_class(self.classes[node.id]) if node.id in self.classes else self.of_kubernetes(node.id)
        arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if node.value.id == "Literal":
            return {"enum": [argument.value for argument in arguments]}
        first, *rest = [self.of_type(argument) for argument in arguments if not isinstance(argument, ast.Call)]
        match node.value.id:
            case "Optional":
                return first
            case "List":
                return {"type": "array", "items": first}
            case "Dict":
                return {"type": "object", "additionalProperties": rest[0]}
            case "Union":
                return {"anyOf": [first, *rest]}
            case "Annotated":
                given = field_arguments(arguments[1])
                # The patterns are Go's, whose flags may follow an anchor.
                return first | {
                    constraint: re.sub(r"^\^\(\?i\)", "(?i)^", str(given[name])) if name == "pattern" else given[name]
                    for name, constraint in CONSTRAINTS.items()
                    if name in given
                }
        raise ValueError(f"unknown annotation {ast.unparse(node)}")

    def of_kubernetes(self, name):
        """What a class of another package stands for, such as ObjectMeta or IoK8sApiBatchV1JobTemplateSpec."""
        for full in self.definitions:
            if name in (full.rpartition(".meta.v1.")[2], "".join(w[0].upper() + w[1:] for w in re.split(r"\W", full))):
                return {"$ref": f"#/$defs/{full}"}
        raise ValueError(f"Kubernetes has no {name}")
