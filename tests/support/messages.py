"""Every message of hubline's errors, collected from its source, for a page on which people can read them all.

`python -m tests.support.messages` writes the page. `problems_of` is the rule for one message, as it is written in the
source: with `{name}` for each value.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hubline.text import sentences

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "src/hubline"
PAGE: Final = ROOT / "docs/reference/messages.md"

VARIANTS_MAX: Final = 40
DEPTH_MAX: Final = 6

# The rule --------------------------------------------------------------------------------------------------------

_VERBS: Final = (
    "add|allow|ask|await|call|cast|change|check|choose|close|continue|copy|correct|create|decorate|delete|"
    "discard|drop|enter|exchange|export|fix|free|give|grant|increase|install|keep|leave|let|list|look|make|"
    "move|name|number|open|pass|percent-encode|put|quote|raise|re-create|read|redrive|register|remove|rename|"
    "replace|report|reset|restart|restore|return|run|save|search|see|send|set|shorten|spell|split|start|stop|"
    "try|update|upgrade|use|wait|write"
)
"""Imperatives with which a sentence says what to do."""

_OPENERS: Final = r"(?:(?:Or|Then|Otherwise)[, ]+|(?:If|To|For|In)\b[^.,:]*[,:] )?"
_ACTION: Final = re.compile(rf"{_OPENERS}(?:{_VERBS})\b", re.IGNORECASE)
_OTHER_ACTION: Final = re.compile(r"(hubline|You|Did you mean)\b|\{(fix|nearest_or_all)\}")
_SENTENCE: Final = re.compile(r"(?<=[.?!)])\s+(?=[A-Z{]|hubline )|\n(?=[A-Z])")
_CLIPPED: Final = re.compile(rf"[:;] (?!set|see|read|call)(?:{_VERBS}) \S")


PASSED_ON: Final = frozenset({
    "hubline.addresses.option_checks._checked",
    "hubline.cli.pipeline._require_spark",
    "hubline.coordination.dispatcher.Dispatcher._report_damaged",
    "hubline.credentials.token_credentials.token_credential",
    "hubline.hubs.eventhubs.receiver.EventHubsReceiver._reopen",
    "hubline.pipeline.config_file.ConfigReader.parsed",
    "hubline.pipeline.definition.Pipeline._decorator",
    "hubline.pipeline.definition._checked_name",
    "hubline.pipeline.environment_checks._check_hub",
    "hubline.pipeline.loading._raised",
    "hubline.pipeline.planning._Planning._options",
    "hubline.pipeline.runner.PipelineRun.run",
    "hubline.pipeline.stage_frame._all_events",
    "hubline.producer.outlet.send_failed",
    "hubline.sinks.sql_sink.connection.SinkConnection.explain",
    "hubline.spark.options._Given._parsed",
})  # fmt: skip
"""Functions that pass on the message of another error, with the place before it."""

_OTHERS_WORDS: Final = ("hubline.emulator.receivers", "hubline.amqp.", "hubline.hubs.eventhubs.management_requests")
"""What a peer is answered, and what is wrong with what it sent: not for people, but part of messages for them."""


def is_for_people(module: str, function: str, error: str) -> bool:
    """Whether it is a whole message, which people read as it is."""
    is_protocol = error.startswith("Amqp") or module.startswith(_OTHERS_WORDS)
    return not is_protocol and f"{module}.{function}" not in PASSED_ON


def what_to_do(message: str) -> str:
    """The part of a message that says what to do, or an empty string.

    That is what follows from the first sentence that begins with an imperative, or says what hubline does by itself.
    A message that says what a value must be needs no more.
    """
    sentences = _SENTENCE.split(message)
    for number, sentence in enumerate(sentences):
        if number and (_ACTION.match(sentence) or _OTHER_ACTION.match(sentence)):
            return " ".join(sentences[number:])
    return "" if not re.search(r"\bmust\b", message) else sentences[-1] if len(sentences) > 1 else message


def problems_of(message: str) -> Iterator[str]:
    """What is wrong with the form of a message."""
    if not what_to_do(message):
        yield "it does not say what to do"
    if not message.rstrip().endswith((".", "?", ".)", "}")):
        yield "it does not end as a sentence does"
    if match := _CLIPPED.search(message):
        yield f"{match[0]!r} hangs on a colon: begin a sentence"


# The source -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """One message, with `{name}` for each value in it, and where it is raised."""

    error: str
    text: str
    module: str
    function: str


@dataclass(slots=True)
class _Module:
    name: str
    tree: ast.Module
    constants: dict[str, ast.expr] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Scope:
    module: _Module
    functions: tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]
    owner: str = ""

    @property
    def name(self) -> str:
        names = [self.owner, *(function.name for function in self.functions)]
        return ".".join(filter(None, names))


def messages() -> list[Message]:
    """All messages, in the order of the source."""
    return _Source().messages()


class _Source:
    def __init__(self) -> None:
        files = sorted(PACKAGE.rglob("*.py"))
        self.modules = {module.name: module for module in map(_parsed, files)}
        self.errors = self._error_types()
        self.scopes = {id(call): (call, scope) for module in self.modules.values() for call, scope in _calls(module)}
        self.calls: dict[str, list[tuple[ast.Call, _Scope]]] = {}
        for call, scope in self.scopes.values():
            self.calls.setdefault(_name_of(call.func), []).append((call, scope))

    def _error_types(self) -> set[str]:
        bases = {
            node.name: {_name_of(base) for base in node.bases}
            for module in self.modules.values()
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ClassDef)
        }
        found = {"HublineError"}
        while more := {name for name, of in bases.items() if of & found} - found:
            found |= more
        return found - {"PipelineInvalid"}

    def messages(self) -> list[Message]:
        found: dict[Message, None] = {}
        for call, scope in self.scopes.values():
            name = _name_of(call.func)
            if name in self.errors and call.args:
                index = 1 if name == "Refusal" and len(call.args) > 1 else 0
                for text in self._whole(call.args[index], scope):
                    found[Message(name, text, scope.module.name, scope.name)] = None
            elif name == "Problem" and len(call.args) > 2:
                found |= dict.fromkeys(self._problems(call, scope))
        found |= dict.fromkeys(self._problems_in_tuples())
        return list(found)

    # Problems of pipelines: a message and its fix

    def _problems(self, call: ast.Call, scope: _Scope) -> Iterator[Message]:
        message, *fix = call.args[2:]
        if isinstance(message, ast.Name) and scope.functions and message.id in _parameters(scope.functions[-1]):
            for each, caller in self._callers(scope):
                given = _arguments(each, scope.functions[-1])
                if message.id in given:
                    yield from self._pair(given[message.id], given.get("fix"), caller)
        else:
            yield from self._pair(message, fix[0] if fix else None, scope)

    def _problems_in_tuples(self) -> Iterator[Message]:
        """Some functions return both, and another one makes the problem of them."""
        for module in self.modules.values():
            if module.name.startswith("hubline.pipeline."):
                for function in (node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef)):
                    for node in ast.walk(function):
                        if isinstance(node, ast.Tuple) and len(node.elts) > 1:
                            *_, message, fix = node.elts
                            scope = _Scope(module, (function,))
                            if all(_is_prose(text) for each in (message, fix) for text in self._texts(each, scope, 0)):
                                yield from self._pair(message, fix, scope)

    def _pair(self, message: ast.expr, fix: ast.expr | None, scope: _Scope) -> Iterator[Message]:
        fixes = [""] if fix is None else self._texts(_last_assigned(fix, scope), scope, 0)
        for text in self._whole(_last_assigned(message, scope), scope):
            for action in fixes:
                yield Message("Problem", sentences(text, action), scope.module.name, scope.name)

    def _whole(self, node: ast.expr, scope: _Scope) -> list[str]:
        """The texts of a message. What its function is given is followed to the callers if it lacks an action."""
        texts = self._texts(node, scope, 0)
        if all(what_to_do(text) for text in texts):
            return texts
        return self._texts(node, scope, 0, follow=True)

    # What an expression may be -----------------------------------------------------------------------------------

    def _texts(self, node: ast.expr, scope: _Scope, depth: int, *, follow: bool = False) -> list[str]:
        found: list[str] | None = None
        if depth <= DEPTH_MAX:
            found = self._known(node, scope, depth + 1, follow=follow)
        return list(dict.fromkeys(found))[:VARIANTS_MAX] if found else [f"{{{_short(node)}}}"]

    def _known(self, node: ast.expr, scope: _Scope, depth: int, *, follow: bool) -> list[str] | None:
        def texts(each: ast.expr) -> list[str]:
            return self._texts(each, scope, depth, follow=follow)

        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.Constant(value=int(number)):
                return [str(number)]
            case ast.JoinedStr(values=parts):
                return ["".join(each) for each in itertools.islice(itertools.product(*map(texts, parts)), VARIANTS_MAX)]
            case ast.FormattedValue(value=value):
                return texts(value)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return [first + second for first in texts(left) for second in texts(right)]
            case ast.IfExp(body=body, orelse=orelse):
                return [*texts(body), *texts(orelse)]
            case ast.BoolOp(values=values):
                return [text for value in values for text in texts(value)]
            case ast.Call(func=ast.Name(id="sentences"), args=[problem, *fix]):
                fixes = texts(fix[0]) if fix else [""]
                return [sentences(each, action) for each in texts(problem) for action in fixes]
            case ast.Call(func=ast.Attribute(value=value, attr="get" | "format" | "removesuffix")):
                return self._of_table(value, scope, depth)
            case ast.Subscript(value=value):
                return self._of_table(value, scope, depth)
            case ast.Call(func=ast.Name(id=name)):
                return self._returned(name, scope, depth)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                return self._returned(name, scope, depth)
            case ast.Name(id=name):
                return self._named(name, node.lineno, scope, depth, follow=follow)
        return None

    def _named(self, name: str, line: int, scope: _Scope, depth: int, *, follow: bool) -> list[str] | None:
        for function in reversed(scope.functions):
            assigned = [value for value in _assigned(name, function) if value is not None and value.lineno <= line]
            texts = [text for value in assigned for text in self._texts(value, scope, depth, follow=follow)]
            if name in _parameters(function):
                return [*texts, *(self._given(name, scope, function, depth) if follow else [])] or None
            if assigned:
                return [text for text in texts if _is_prose(text)] or None
        return self._constant(name, scope.module, depth)

    def _constant(self, name: str, module: _Module, depth: int) -> list[str] | None:
        if name in module.constants:
            return self._known(module.constants[name], _Scope(module, ()), depth, follow=False)
        origin = self.modules.get(module.imports.get(name, ""))
        return self._constant(name, origin, depth) if origin is not None and origin is not module else None

    def _of_table(self, table: ast.expr, scope: _Scope, depth: int) -> list[str] | None:
        """What a table of texts in the module, or in the function, may give."""
        if not isinstance(table, ast.Name):
            return None
        values = [scope.module.constants.get(table.id), *(v for f in scope.functions for v in _assigned(table.id, f))]
        for value in values:
            if isinstance(value, ast.Dict):
                found = [text for each in value.values for text in self._texts(each, scope, depth)]
                return found if any(map(_is_prose, found)) else None
        return None

    def _returned(self, name: str, scope: _Scope, depth: int) -> list[str] | None:
        """What a function of the same module, which makes a text, may return."""
        module = scope.module
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                inner = _Scope(module, (node,))
                returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
                found = [text for value in returned for text in self._texts(value, inner, depth)]
                return found if any(map(_is_prose, found)) else None
        return None

    def _callers(self, scope: _Scope) -> list[tuple[ast.Call, _Scope]]:
        function = scope.functions[-1]
        name = scope.owner if function.name == "__init__" else function.name
        found = self.calls.get(name, [])
        return [each for each in found if each[1].module is scope.module] or found

    def _given(
        self, name: str, scope: _Scope, function: ast.FunctionDef | ast.AsyncFunctionDef, depth: int
    ) -> list[str]:
        """What callers of the function give for one of its parameters, where that is a text."""
        if not scope.functions or function is not scope.functions[-1]:
            return []
        found = []
        for call, caller in self._callers(scope):
            if (value := _arguments(call, function).get(name)) is not None:
                found += [text for text in self._texts(value, caller, depth, follow=True) if _is_prose(text)]
        return found


def _is_prose(text: str) -> bool:
    return " " in re.sub(r"\{.*?\}", "", text)


def _parsed(file: Path) -> _Module:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    module = _Module(".".join(parts).removesuffix(".__init__"), ast.parse(file.read_text()))
    for node in module.tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                module.constants[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                module.constants[name] = value
            case ast.ImportFrom(module=str(origin), names=names):
                module.imports |= {each.asname or each.name: origin for each in names}
    return module


def _calls(module: _Module) -> Iterator[tuple[ast.Call, _Scope]]:
    def walk(node: ast.AST, scope: _Scope) -> Iterator[tuple[ast.Call, _Scope]]:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = _Scope(module, (*scope.functions, child), scope.owner)
            elif isinstance(child, ast.ClassDef):
                inner = _Scope(module, (), child.name)
            elif isinstance(child, ast.Call):
                yield child, scope
            yield from walk(child, inner)

    return walk(module.tree, _Scope(module, ()))


def _name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = function.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _arguments(call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Mapping[str, ast.expr]:
    names = _parameters(function)
    if names[:1] in (["self"], ["cls"]):
        names = names[1:]
    given = dict(zip(names, call.args, strict=False))
    return given | {each.arg: each.value for each in call.keywords if each.arg}


def _assigned(name: str, function: ast.AST) -> Iterator[ast.expr | None]:
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                yield value
            case ast.AugAssign(target=ast.Name(id=found), value=value) if found == name:
                yield value
            case ast.AnnAssign(target=ast.Name(id=found), value=value) if found == name:
                yield value
            case ast.NamedExpr(target=ast.Name(id=found), value=value) if found == name:
                yield value
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                yield from (v for n, v in zip(names, values, strict=False) if isinstance(n, ast.Name) and n.id == name)


def _last_assigned(node: ast.expr, scope: _Scope) -> ast.expr:
    """What a name stands for at its place, where it is given several values in turn."""
    if isinstance(node, ast.Name) and scope.functions:
        values = [each for each in _assigned(node.id, scope.functions[-1]) if each and each.lineno < node.lineno]
        return max(values, key=lambda each: each.lineno, default=node)
    return node


def _short(node: ast.expr) -> str:
    """The name of a value: {shown(self._hub.name)} is {name}."""
    match node:
        case ast.Call(args=[only]) | ast.Await(value=only):
            return _short(only)
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join"), args=[*_, last]):
            return _short(last)
        case ast.Call(func=function):
            return _short(function)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name.lstrip("_").lower()
        case ast.Subscript(value=value) | ast.Starred(value=value):
            return _short(value)
        case ast.GeneratorExp(elt=element):
            return _short(element)
    return "value"


# The page -------------------------------------------------------------------------------------------------------

HEAD: Final = """\
# Every error message

<!-- Generated by `python -m tests.support.messages`. Do not edit. -->

All messages of hubline's errors, as they are in its source, with `{name}` for each value. The first part says what is
wrong, the second what to do. [Errors](errors.md) explains the types. What raises a message often puts the place before
it: a file and line, an option, or a stage.
"""


def page() -> str:
    lines = [HEAD]
    listed = [each for each in messages() if is_for_people(each.module, each.function, each.error)]
    rows = sorted((_area(each.module), each.module, number, each) for number, each in enumerate(listed))
    for area, of_area in itertools.groupby(rows, key=lambda row: row[0]):
        lines += [f"## {area}\n", "| error, where | message | what to do |", "|---|---|---|"]
        lines += list(dict.fromkeys(_row(message) for *_, message in of_area))
        lines.append("")
    return "\n".join(lines)


def _area(module: str) -> str:
    parts = module.split(".")[1:]
    return ".".join(
        parts[:2] if parts[0] in ("hubs", "checkpoint_stores", "sinks", "spark") and len(parts) > 2 else parts[:1]
    )


def _row(message: Message) -> str:
    action = what_to_do(message.text)
    problem = message.text.removesuffix(action).strip() if action != message.text else message.text
    where = f"{message.module.split('.')[-1]}.{message.function}"
    return f"| `{message.error}` {_cell(where)} | {_cell(problem)} | {_cell(action if action != problem else '')} |"


def _cell(text: str) -> str:
    text = " ".join(text.split())
    text = re.sub(r"[<>|]", lambda match: f"&#{ord(match[0])};", text)
    return re.sub(r"[\\\\`*{}\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)


if __name__ == "__main__":
    PAGE.write_text(page())
