"""What the module says of itself is so: the stubs, mpi4py's names, a world without a launcher, the example.

    module_test.py CHORUS EXAMPLE    the command, and the example's file
"""

import ast
import inspect
import os
import subprocess
import sys
import unittest

import ranks  # noqa: F401  skips without numpy, which the example needs

import chorus
from chorus import MPI, _core, _objects

COMMAND, EXAMPLE = sys.argv[1:3]
# What mpi4py's programs call, with the arguments that its documentation names.
OF_MPI4PY = {
    "Allreduce": ["sendbuf", "recvbuf", "op"], "Reduce": ["sendbuf", "recvbuf", "op", "root"],
    "Reduce_scatter": ["sendbuf", "recvbuf", "recvcounts", "op"],
    "Reduce_scatter_block": ["sendbuf", "recvbuf", "op"], "Allgather": ["sendbuf", "recvbuf"],
    "Gather": ["sendbuf", "recvbuf", "root"], "Scatter": ["sendbuf", "recvbuf", "root"],
    "Alltoall": ["sendbuf", "recvbuf"], "Alltoallv": ["sendbuf", "recvbuf"], "Bcast": ["buf", "root"],
    "Barrier": [], "Send": ["buf", "dest", "tag"], "Recv": ["buf", "source", "tag"],
    "Sendrecv": ["sendbuf", "dest", "sendtag", "recvbuf", "source", "recvtag"], "Split": ["color", "key"],
    "Isend": ["buf", "dest", "tag"], "Irecv": ["buf", "source", "tag"], "Ibarrier": [],
    "Iallreduce": ["sendbuf", "recvbuf", "op"], "Dup": [], "Free": [], "Get_rank": [], "Get_size": [],
}


def body_of(stub):
    with open(os.path.join(os.path.dirname(_core.__file__), stub)) as file:
        return ast.parse(file.read()).body


def stubs():
    """{class or "": {function: its arguments}} of _core.pyi."""
    body = body_of("_core.pyi")
    found = {"": {}}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {item.name: item.args for item in node.body if isinstance(item, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            found[""][node.name] = node.args
    return found


class Module(unittest.TestCase):
    def test_stubs_name_what_there_is(self):
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(chorus.__file__), "py.typed")))
        found = stubs()
        functions = {name for name, value in vars(_core).items() if inspect.isbuiltin(value)}
        self.assertEqual(set(found.pop("")), functions)
        classes = {name for name, value in vars(_core).items() if inspect.isclass(value)}
        self.assertEqual(set(found), classes | {"Memory"})
        for name in ("Comm", "Request"):
            public = {method for method in vars(getattr(_core, name)) if not method.startswith("_")}
            self.assertEqual(set(found[name]), public)

    def test_stubs_of_what_is_written_in_python_name_what_there_is(self):
        for module, stub in ((chorus, "__init__.pyi"), (MPI, "MPI.pyi")):
            named = set()
            for node in body_of(stub):
                if isinstance(node, ast.ImportFrom) and node.module != "typing":
                    named |= {alias.asname for alias in node.names}
                elif isinstance(node, ast.AnnAssign):
                    named.add(node.target.id)
                elif isinstance(node, ast.Assign):
                    named.add(node.targets[0].id)
                elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    named.add(node.name)
            public = {name for name, value in vars(module).items()
                      if not name.startswith("_") and not inspect.ismodule(value)}
            self.assertEqual(named - {None}, public | {"COMM_WORLD"})
        comm = next(node for node in body_of("__init__.pyi") if getattr(node, "name", "") == "Comm")
        self.assertEqual({node.name for node in comm.body}, {name for name in vars(_objects.Objects)
                                                             if not name.startswith("_")})

    def test_arguments_have_the_names_of_the_stubs_and_of_mpi4py(self):
        world = chorus.join()
        taken = stubs()["Comm"]
        for method, names in OF_MPI4PY.items():
            self.assertEqual([argument.arg for argument in taken[method].args[1:]], names, method)
        for method, arguments in taken.items():
            call = getattr(world, method)
            for argument in arguments.args[1:] if callable(call) else ():
                try:
                    # Refused for what it is, not because there is no such argument.
                    call(**{argument.arg: object()})
                except Exception as error:
                    self.assertNotIn("has no argument", str(error), method)
        world.Free()

    def test_programs_for_mpi4py_change_their_import(self):
        comm = MPI.COMM_WORLD
        self.assertIs(comm, chorus.COMM_WORLD)
        self.assertIsInstance(comm, MPI.Intracomm)
        data = bytearray(8)
        comm.Allreduce(MPI.IN_PLACE, [data, MPI.DOUBLE], op=MPI.SUM)
        for name, value in vars(MPI).items():
            if name.isupper() and isinstance(value, str) and name != "IN_PLACE":
                self.assertIn(value, chorus.TYPES)
        with self.assertRaisesRegex(AttributeError, "Win"):
            MPI.Win
        self.assertTrue(issubclass(chorus.CollectiveError, MPI.Exception))
        self.assertTrue(issubclass(chorus.InputError, ValueError))

    def test_the_example_runs(self):
        said = subprocess.run([COMMAND, "run", "-n", "2", "--", sys.executable, "-B", EXAMPLE], capture_output=True,
                              text=True)
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        self.assertRegex(said.stdout, "(?m)^2 ranks: .* slope 3.00")

    def test_a_launched_rank_that_raises_is_named_by_the_others(self):
        script = ("import chorus\nworld = chorus.COMM_WORLD\n"
                  "if world.rank == 1: raise RuntimeError('disk full')\nworld.Barrier()")
        said = subprocess.run([COMMAND, "run", "-n", "2", "--", sys.executable, "-c", script], capture_output=True,
                              text=True, timeout=60)
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("rank 1", said.stderr)
        self.assertRegex(said.stderr, "CollectiveError: .*ended with RuntimeError: disk full")

    def test_torch_is_not_needed(self):
        said = subprocess.run([sys.executable, "-c", "import sys, chorus; chorus.COMM_WORLD.Barrier(); "
                               "print({'numpy', 'torch'} & set(sys.modules))"], capture_output=True, text=True)
        self.assertEqual(said.stdout.strip(), "set()", said.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
