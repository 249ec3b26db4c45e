"""Finds the places of C++ sources that can be mutated, and instruments the sources with all mutants at once.

An instrumented source (a "mutant schema", Untch et al., 1993) is compiled once; active.h chooses the active mutant
when a program starts. Instrumentation inserts text within lines only: it adds no line, and a line without a mutant
does not change. Each site evaluates its operands once and in the original's order.

Kinds of mutants:
  negate   a condition of if, while or ?: has the opposite value
  equal    == and != are exchanged
  bound    < and <=, > and >= are exchanged
  drop     one operand of && or || is left out; if it compares an iterator with end() and others dereference the
           iterator, the mutant fails where it is end()
  plus1, twice, zero   a number
  skip     a call is left out whose result is not used
  return   a function that returns bool returns the opposite
  planted  a bug of planted.py
"""

import dataclasses
import re

import tree_sitter
import tree_sitter_cpp

LANGUAGE = tree_sitter.Language(tree_sitter_cpp.language())
NAMESPACE = "cadre::mutation::"
RELATIONS = {
    "<": ("Less", "<="),
    "<=": ("LessOrEqual", "<"),
    ">": ("Greater", ">="),
    ">=": ("GreaterOrEqual", ">"),
}
# Constant expressions, and what is not the program's behaviour.
CONSTANT_PARENTS = {
    "array_declarator", "bitfield_clause", "enumerator", "preproc_def", "preproc_if", "static_assert_declaration",
    "template_argument_list"
}
CHECKS = ("CHECK", "DCHECK", "LOG", "VLOG", "static_assert")
END = re.compile(r"\br?end\(\)$")
# Calls without which only time or memory differ.
TUNING = {"reserve", "shrink_to_fit"}


@dataclasses.dataclass
class Mutant:
    path: str
    line: int
    column: int
    # The source line.
    text: str
    kind: str
    before: str
    after: str
    number: int
    name: str = ""

    @property
    def id(self):
        return self.name or f"{self.path}:{self.line}:{self.column}:{self.kind}"


def text_of(node):
    return node.text.decode()


def ancestors(node):
    while node.parent is not None:
        node = node.parent
        yield node


def is_constexpr(node):
    return any(child.type == "type_qualifier" and text_of(child) == "constexpr" for child in node.children)


def callee(call):
    """The last part of the called name: `set_step` of `run.mutable_record()->set_step(1)`."""
    function = call.child_by_field_name("function")
    while function is not None and function.type in ("field_expression", "qualified_identifier", "template_function",
                                                     "template_method"):
        function = function.child_by_field_name("field") or function.child_by_field_name("name")
    return text_of(function) if function is not None else ""


class Instrumenter:
    """Collects mutants and edits of one source. `take_number` returns the number of the next mutant."""

    def __init__(self, path, source, take_number):
        self.path = path
        self.source = source
        self.lines = source.decode().splitlines()
        self.take_number = take_number
        self.mutants = []
        self._edits = []
        self._negated = set()

    # ---- Edits

    def _wrap(self, node, before, after):
        """Inserts text around a node. Of nodes that begin or end at one place, the outer one's text is outside; of
        one node, the text of the first call is."""
        order = len(self._edits)
        self._edits.append(((node.start_byte, 1, -node.end_byte, order), node.start_byte, node.start_byte, before))
        self._edits.append(((node.end_byte, 0, -node.start_byte, -order), node.end_byte, node.end_byte, after))

    def _replace(self, node, text):
        self._edits.append(((node.start_byte, 2, 0, 0), node.start_byte, node.end_byte, text))

    def result(self):
        parts, position = [], 0
        for _, start, end, text in sorted(self._edits):
            parts += [self.source[position:start], text.encode()]
            position = end
        return b"".join(parts + [self.source[position:]])

    def _add(self, kind, node, after, before=None):
        return self._add_at(*node.start_point, kind, before or text_of(node), after)

    def _add_at(self, row, column, kind, before, after, name=""):
        number = self.take_number()
        text = self.lines[row].strip()
        self.mutants.append(Mutant(self.path, row + 1, column + 1, text, kind, before, after, number, name))
        return number

    # ---- Sites

    def visit(self, node):
        if node.has_error and node.type in ("expression_statement", "declaration", "ERROR"):
            return
        if node.type in CONSTANT_PARENTS or self._is_check(node):
            return
        if node.type in ("function_definition", "lambda_expression") and is_constexpr(node):
            return
        method = getattr(self, "_" + node.type, None)
        if method is not None:
            method(node)
        before = len(self.mutants)
        for child in node.named_children:
            # The value of a case label is a constant expression.
            if node.type == "case_statement" and child == node.child_by_field_name("value"):
                continue
            self.visit(child)
        if node.type == "declaration" and len(self.mutants) > before:
            self._initialize_at_start(node)

    @staticmethod
    def _is_check(node):
        if node.type == "static_assert_declaration":
            return True
        if node.type == "expression_statement":
            text = text_of(node)
            return text.startswith(tuple(prefix + end for prefix in CHECKS for end in ("(", "_")))
        return False

    def _initialize_at_start(self, node):
        """A constexpr variable with a mutant becomes const: it is computed when the program starts."""
        for child in node.children:
            if child.type == "type_qualifier" and text_of(child) == "constexpr":
                self._replace(child, "const")

    def _negate(self, kind, node):
        if node.type in ("true", "false"):
            after = "false" if node.type == "true" else "true"
        else:
            text = text_of(node)
            after = text[1:] if node.type == "unary_expression" and text.startswith("!") else f"!({text})"
        self._negated.add(node.id)
        number = self._add(kind, node, after)
        self._wrap(node, f"({NAMESPACE}Is({number}) != static_cast<bool>(", "))")

    def _condition(self, node):
        if node is None:
            return
        if node.type == "condition_clause":
            node = node.child_by_field_name("value")
        if node.type == "declaration":
            return
        while node.type == "parenthesized_expression":
            node = node.named_children[0]
        if self._operator(node) not in ("==", "!="):
            self._negate("negate", node)

    def _if_statement(self, node):
        if not any(child.type == "constexpr" for child in node.children):
            self._condition(node.child_by_field_name("condition"))

    def _while_statement(self, node):
        self._condition(node.child_by_field_name("condition"))

    def _conditional_expression(self, node):
        self._condition(node.child_by_field_name("condition"))

    @staticmethod
    def _operator(node):
        operator = node.child_by_field_name("operator") if node.type == "binary_expression" else None
        return operator.type if operator is not None else ""

    def _binary_expression(self, node):
        operator = self._operator(node)
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if operator in ("==", "!="):
            other = "!=" if operator == "==" else "=="
            number = self._add("equal", node, f"{text_of(left)} {other} {text_of(right)}")
            self._wrap(node, f"({NAMESPACE}Is({number}) != (", "))")
        elif operator in RELATIONS:
            function, other = RELATIONS[operator]
            number = self._add("bound", node, f"{text_of(left)} {other} {text_of(right)}")
            self._wrap(node, f"{NAMESPACE}{function}({number}, ", ")")
            self._replace(node.child_by_field_name("operator"), ",")
        elif operator in ("&&", "||"):
            for operand, rest in ((left, right), (right, left)):
                if self._operator(operand) != operator:
                    self._drop(operator, node, operand, rest)

    def _drop(self, operator, node, operand, rest):
        number = self._add("drop", operand, text_of(rest), before=text_of(node))
        if self._guards_iterator(operand):
            neutral = "true" if operator == "&&" else "false"
            self._wrap(operand, f"{NAMESPACE}Unchecked({number}, ", f", {neutral})")
            return
        active = f"{NAMESPACE}Is({number})"
        self._wrap(operand, f"({active} || (" if operator == "&&" else f"(!{active} && (", "))")

    def _guards_iterator(self, operand):
        """Whether the operand compares an iterator with end(), and other operands dereference the iterator."""
        if self._operator(operand) not in ("==", "!="):
            return False
        iterator, end = (text_of(operand.child_by_field_name(side)) for side in ("left", "right"))
        if not END.search(end):
            return False
        outer = operand
        while self._operator(outer.parent) in ("&&", "||") or outer.parent.type == "parenthesized_expression":
            outer = outer.parent
        return re.search(rf"(\*{re.escape(iterator)}\b|\b{re.escape(iterator)}->)", text_of(outer)) is not None

    def _number_literal(self, node):
        text = text_of(node)
        try:
            value = float(text.replace("'", "")) if text[-1] in ".0123456789" else int(text.rstrip("uUlL"))
        except ValueError:
            return
        if value == 0:
            numbers = [self._add("plus1", node, "1"), 0, 0]
        elif value == 1:
            numbers = [self._add("plus1", node, "2"), 0, self._add("zero", node, "0")]
        else:
            after = f"{value + 1:g}", f"{value * 2:g}"
            numbers = [self._add("plus1", node, after[0]), self._add("twice", node, after[1]),
                       self._add("zero", node, "0")]
        self._wrap(node, f"{NAMESPACE}Constant({', '.join(map(str, numbers))}, ", ")")

    def _expression_statement(self, node):
        call = node.named_children[0] if node.named_children else None
        if call is None or call.type != "call_expression" or callee(call) in TUNING:
            return
        number = self._add("skip", node, ";")
        self._wrap(node, f"{{ if (!{NAMESPACE}Is({number})) {{ ", " } }")

    def _return_statement(self, node):
        value = node.named_children[0] if node.named_children else None
        function = next((a for a in ancestors(node) if a.type in ("function_definition", "lambda_expression")), None)
        if value is None or function is None or function.type == "lambda_expression":
            return
        result = function.child_by_field_name("type")
        if result is None or text_of(result) != "bool" or value.id in self._negated:
            return
        declarator = function.child_by_field_name("declarator")
        if declarator.type == "function_declarator" and self._operator(value) not in ("==", "!="):
            self._negate("return", value)

    # ---- Planted bugs

    def plant(self, name, old, new, after=""):
        """Replaces `old`, which is an expression or statements and follows `after`, with `new` in the mutant."""
        whole = (after + old).encode()
        if self.source.count(whole) != 1:
            raise ValueError(f"{self.path}: planted bug '{name}': the text is not there exactly once:\n{after}{old}")
        start = self.source.find(whole) + len(after.encode())
        row = self.source.count(b"\n", 0, start)
        active = f"{NAMESPACE}Is({self._add_at(row, 0, 'planted', old, new, name)})"
        new = " ".join(new.split())
        place = Span(start, start + len(old.encode()))
        if old.rstrip().endswith((";", "}")):
            self._wrap(place, f"if ({active}) {{ {new} }} else {{ ", " }")
        else:
            self._wrap(place, f"({active} ? ({new}) : (", "))")


@dataclasses.dataclass
class Span:
    start_byte: int
    end_byte: int


def instrument(path, source, take_number, planted=()):
    """(instrumented source, mutants). `planted`: (name, old, new, after) of the bugs in this source."""
    instrumenter = Instrumenter(path, source, take_number)
    for bug in planted:
        instrumenter.plant(*bug)
    instrumenter.visit(tree_sitter.Parser(LANGUAGE).parse(source).root_node)
    return instrumenter.result(), instrumenter.mutants
