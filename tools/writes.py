"""Finds writes to our tables in a syntax tree: ORM verbs, instances, and raw SQL text.

A queryset or instance is followed through plain assignments, loops and annotations inside one
function. What cannot be followed is judged by the file alone: a write whose model is unknown may
stand only in a file that writes some table of ours.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from tools.rooms import BY_MODEL, BY_TABLE, WRITERS, Room, stands_in

QUERYSET_VERBS = {
    "create", "acreate", "bulk_create", "abulk_create", "bulk_update", "abulk_update",
    "get_or_create", "aget_or_create", "update_or_create", "aupdate_or_create",
    "update", "aupdate", "delete", "adelete", "_raw_delete",
}  # fmt: skip
ALWAYS_ORM = {verb for verb in QUERYSET_VERBS if "bulk" in verb or "_or_" in verb or verb[0] == "_"}
INSTANCE_VERBS = {"save", "asave", "save_base"}
MANAGERS = (".objects", "._default_manager", "._base_manager")
SQL = re.compile(
    r"\b(?:UPDATE(?:\s+ONLY)?|INSERT\s+(?:OR\s+\w+\s+)?INTO|DELETE\s+FROM|TRUNCATE(?:\s+TABLE)?)"
    r"\s+[\"'`]?(\w+|\{\w*\}|%s)",
    re.IGNORECASE,
)

# A model that is not ours: the host's users, tokens, content types.
FOREIGN = Room("", "", ())

Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_writes(path: str, module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, text) for every write in `module` that `path` has no right to."""
    names = Names.of_file(path, module)
    seen: set[int] = set()
    for function in ast.walk(module):
        if isinstance(function, Function):
            yield from _calls(path, function, names.inside(function), seen)
    yield from _calls(path, module, names, seen)
    yield from _sql(path, module)


class Names:
    """Which names of a file or function stand for a model of ours, and which for its module."""

    def __init__(self, models: dict[str, Room], modules: dict[str, str]) -> None:
        """Take what is known so far."""
        self.models = models
        self.modules = modules

    @classmethod
    def of_file(cls, path: str, module: ast.Module) -> Names:
        """Read the imports and class definitions of a file."""
        names = cls({}, {})
        here = path.removesuffix(".py").replace("/", ".")
        package = list(PurePosixPath(path).parent.parts)
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                names._import_from(".".join([*base, node.module or ""]).strip("."), node)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    names.modules[alias.asname or alias.name] = alias.name
            elif isinstance(node, ast.ClassDef) and (here, node.name) in BY_MODEL:
                names.models[node.name] = BY_MODEL[here, node.name]
        return names

    def _import_from(self, source: str, node: ast.ImportFrom) -> None:
        for alias in node.names:
            name = alias.asname or alias.name
            if (source, alias.name) in BY_MODEL:
                self.models[name] = BY_MODEL[source, alias.name]
            elif _foreign(source) and alias.name[:1].isupper():
                self.models[name] = FOREIGN
            else:
                self.modules[name] = f"{source}.{alias.name}"

    def inside(self, function: Function) -> Names:
        """Add what a function's annotations, assignments and loops say about its own names."""
        local = Names(dict(self.models), self.modules)
        arguments = function.args
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            if argument.annotation is not None:
                local._bind(ast.Name(argument.arg), argument.annotation)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    local._bind(target, node.value)
            elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                local._bind(node.target, node.iter)
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                local._bind(node.target, node.value)
        return local

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        found = self.root(value)
        if found is None and not isinstance(value, ast.Call):
            # An annotation such as `list[Worker]` or `Worker | None`, or a tuple of rows.
            parts = (self.root(part) for part in ast.walk(value) if isinstance(part, ast.expr))
            found = next((part for part in parts if part), None)
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        for name in names:
            if found is not None and isinstance(name, ast.Name):
                self.models[name.id] = found

    def root(self, node: ast.expr) -> Room | None:
        """The model that a chain such as `Model.objects.filter(...)` starts from."""
        while True:
            if isinstance(node, ast.Name):
                return self.models.get(node.id)
            if isinstance(node, ast.Attribute):
                module = self.modules.get(ast.unparse(node.value), "")
                if (module, node.attr) in BY_MODEL:
                    return BY_MODEL[module, node.attr]
                node = node.value
            elif isinstance(node, ast.Call):
                name = ast.unparse(node.func).rsplit(".", 1)[-1]
                if name == "get_user_model":
                    return FOREIGN
                if name == "get_model":
                    return _by_label(node)
                if name in ("get_object_or_404", "get_list_or_404", "list", "iter") and node.args:
                    node = node.args[0]
                else:
                    node = node.func
            elif isinstance(node, ast.Subscript | ast.Await):
                node = node.value
            else:
                return None


def _foreign(source: str) -> bool:
    ours = {module for module, _model in BY_MODEL}
    return source.endswith(".models") and source != "django.db.models" and source not in ours


def _by_label(node: ast.Call) -> Room | None:
    words = [str(item.value) for item in node.args if isinstance(item, ast.Constant)]
    label = ".".join(words).lower()
    return next((room for room in BY_TABLE.values() if room.label == label), None)


def _calls(path: str, scope: ast.AST, names: Names, seen: set[int]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and id(node) not in seen:
            seen.add(id(node))
            yield from _call(path, node, names)


def _call(path: str, node: ast.Call, names: Names) -> Iterator[tuple[int, str]]:
    if not isinstance(node.func, ast.Attribute):
        return
    verb, target = node.func.attr, node.func.value
    if verb not in QUERYSET_VERBS | INSTANCE_VERBS or _is_super(target):
        return
    room = names.root(target)
    if room is FOREIGN:
        return
    if room is not None:
        if not room.admits(path):
            yield node.lineno, f"{verb}() on {room.model}; {_owner(room)}"
    elif not stands_in(path, WRITERS) and _looks_orm(verb, target, node):
        yield node.lineno, f"{verb}() on an unnamed row or queryset outside every writing module"


def _owner(room: Room) -> str:
    return f"its writer is {' and '.join(room.writers)}"


def _looks_orm(verb: str, target: ast.expr, node: ast.Call) -> bool:
    text = ast.unparse(target)
    if any(manager in text for manager in MANAGERS):
        # A name with a capital that was imported from nowhere of ours.
        return not text[:1].isupper()
    if verb in ALWAYS_ORM or verb in INSTANCE_VERBS:
        return True
    if verb in ("update", "aupdate"):
        # Columns are written small; `settings.update(AUTOCOMMIT=True)` is a dict's.
        columns = [word.arg for word in node.keywords if word.arg and word.arg.islower()]
        return bool(columns) and not node.args
    chained = isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute)
    named = any(word in text for word in ("queryset", "qs", "row"))
    return "delete" in verb and not node.args and (chained or named)


def _is_super(target: ast.expr) -> bool:
    return isinstance(target, ast.Call) and ast.unparse(target.func) == "super"


def _sql(path: str, module: ast.Module) -> Iterator[tuple[int, str]]:
    for line, text in _texts(module):
        for table in SQL.findall(text):
            room = BY_TABLE.get(table.lower())
            if room is not None and not room.admits(path):
                yield line, f"SQL that writes {table}; {_owner(room)}"
            elif table[0] in "{%" and not stands_in(path, WRITERS):
                yield line, "SQL that writes a table named at run time, outside every writer"


def _texts(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string that is not a docstring, with `{}` where an f-string has an expression."""
    skipped = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
    for node in ast.walk(module):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
