#!/usr/bin/env python3
"""Claim: every function of NVIDIA's nccl.h has the same prototype in Chorus's headers.

    prototypes_test.py CC SOURCE_DIR [NCCL_H]

Skipped (77) where NVIDIA's header is not installed. NCCL_H may be one of any version that exports no
more than this library.
"""
import os
import re
import subprocess
import sys


def find_theirs():
    cuda = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")
    for folder in (cuda, "/usr/local/include", "/usr/include"):
        header = os.path.join(folder, "nccl.h")
        if os.path.exists(header):
            with open(header, encoding="utf-8") as file:
                if re.search(r"NCCL_VERSION_CODE 22809$", file.read(), re.M):
                    return header
    return None


def preprocessed(compiler, text, folders):
    command = [compiler, "-E", "-P", "-x", "c", "-"] + [f"-I{folder}" for folder in folders]
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}:\n{result.stderr}")
    return result.stdout


def type_of(parameter):
    """The parameter without its name, in one spelling."""
    words = re.findall(r"\w+|\*", parameter)
    qualifiers = {"const", "struct", "enum", "unsigned", "signed", "long", "short", "int", "char"}
    names = [i for i, word in enumerate(words) if word != "*" and word not in qualifiers]
    basic = {"unsigned", "signed", "long", "short", "int", "char"} & set(words)
    if names and names[-1] == len(words) - 1 and (basic or len(names) > 1):
        words.pop()
    return " ".join(word for word in words if word != "struct")


def prototypes(text):
    found = {}
    pattern = r"([\w\s*]+?)\b(p?nccl[A-Z]\w*)\s*\(([^(){};]*)\)\s*;"
    text = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", "", text)
    for result, name, parameters in re.findall(pattern, text):
        types = [type_of(each) for each in parameters.split(",") if each.strip()]
        found[name] = (type_of(result + " name"), [] if types == ["void"] else types)
    return found


def main():
    compiler, source = sys.argv[1:3]
    header = sys.argv[3] if len(sys.argv) > 3 else find_theirs()
    if header is None:
        print("skipped: no nccl.h of NCCL 2.28.9 by NVIDIA")
        return 77
    cuda = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")
    theirs = prototypes(preprocessed(compiler, f'#include "{header}"\n', [cuda]))
    ours = prototypes(preprocessed(
        compiler, '#define CHORUS_NCCL_WITHOUT_CUDA\n#include "nccl/newer.h"\n',
        [os.path.join(source, "include"), os.path.join(source, "src")]))
    wrong = 0
    for name, prototype in sorted(theirs.items()):
        if ours.get(name) != prototype:
            print(f"{name}: NVIDIA's {prototype}, ours {ours.get(name)}")
            wrong += 1
    print(f"{len(theirs)} prototypes of {header}, {wrong} differ; ours: {len(ours)}")
    return 1 if wrong or len(theirs) < 80 else 0


sys.exit(main())
