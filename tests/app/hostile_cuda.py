"""Sources that try to read a file of the machine, or to learn whether it is there.

``@PATH@`` is the file's absolute path, ``@REL@`` the same from any folder, ``@PID@`` the process of
the service. ``SOURCES`` go to NVRTC and nvcc, ``PTX`` to ptxas. A new trick is one more line.
"""

from __future__ import annotations

_KERNEL = 'extern "C" __global__ void k(int* p) { p[0] = 1; }\n'
_SHOW = "#define S(...) #__VA_ARGS__\n#define T(...) S(__VA_ARGS__)\n"
_ERROR = "static_assert(false, S(\n{}\n));\n"
_KNOWN = "#if {}\n#error there\n#else\n#error absent\n#endif\n"


def _shown(directive: str) -> str:
    """The text of the file in a compile error."""
    return _SHOW + _ERROR.format(directive)


SOURCES: dict[str, str] = {
    # The file's text in an error message, by every way to write #include.
    "plain": _shown('#include "@PATH@"'),
    "angles": _shown("#include <@PATH@>"),
    "form feed": _shown('#\finclude "@PATH@"'),
    "vertical tab": _shown('#\vinclude "@PATH@"'),
    "form feed before": _shown('\f#include "@PATH@"'),
    "form feed after": _shown('#include\f"@PATH@"'),
    "vertical tabs around": _shown('\v#\v\finclude\v<@PATH@>'),
    "carriage return": _shown('#\rinclude "@PATH@"'),
    "no blank": _shown('#include"@PATH@"'),
    "comment inside": _shown('#/**/include/**/"@PATH@"'),
    "comment over lines": _shown('#/*\n*/include "@PATH@"'),
    "splice in the word": _shown('#inc\\\nlude "@PATH@"'),
    "splice with blanks": _shown('#inc\\ \t\nlude "@PATH@"'),
    "splice with a form feed": _shown('#inc\\\f\nlude "@PATH@"'),
    "splice with CRLF": _shown('#inc\\\r\nlude "@PATH@"'),
    "splice after #": _shown('#\\\n\\\ninclude "@PATH@"'),
    "digraph": _shown('%:include "@PATH@"'),
    "trigraph": _shown('??=include "@PATH@"'),
    "trigraph splice": _shown('#inc??/\nlude "@PATH@"'),
    "universal name": _shown('#\\u0069nclude "@PATH@"'),
    "universal name in the path": _shown('#include "\\u002F@REL@"'),
    "macro": '#define F "@PATH@"\n' + _shown("#include F"),
    "macro with angles": "#define F <@PATH@>\n" + _shown("#include F"),
    "pasted macro": '#define F "@PATH@"\n#define P(a, b) a##b\n#define G P(, F)\n'
    + _shown("#include G"),
    "stringized": "#define Q(x) #x\n#define R(x) Q(x)\n" + _shown("#include R(@PATH@)"),
    "relative": _shown('#include "@REL@"'),
    "relative angles": _shown("#include <@REL@>"),
    "through a toolkit folder": _shown("#include <crt/../@REL@>"),
    "dots and slashes": _shown('#include "/.//..///.@PATH@"'),
    "include_next": _shown('#include_next "@PATH@"'),
    "import": _shown('#import "@PATH@"'),
    "embed": _shown('#embed "@PATH@"'),
    "digit separators": 'int n = sizeof(1\'0) + sizeof("a\' /* b");\n#include "@PATH@"\n/* */\n',
    "separator hides a comment": 'int n = 1\'0 /* \' */;\n' + _shown('#include "@PATH@" // \''),
    "raw string": 'auto s = R"x(" /* )x"; ' + "\n" + _shown('#include "@PATH@"'),
    "raw string with delimiters": 'auto s = R"(*/ " )" "/*";' + "\n" + _shown('#include "@PATH@"'),
    "raw string over a splice": 'auto s = R"(\\\n)" "/*";\n' + _shown('#include "@PATH@"'),
    "prefixed string": 'auto s = u8R"a(" /*)a";\n' + _shown('#include "@PATH@"'),
    "character hides a quote": "int c = '\"'; " + '\n#include "@PATH@"\nint d = \'"\';\n',
    "after a macro call over lines": _SHOW + 'int x = sizeof S(\n#include "@PATH@"\n);\n'
    + "int x;\n",
    # Its text as code: names, values, remarks of the compiler.
    "kernel's name": 'extern "C" __global__ void\n#include "@PATH@"\n(int* p) { p[0] = 1; }\n',
    "kernel's name by form feed": 'extern "C" __global__ void\n#\finclude "@PATH@"\n(int* p) {}\n',
    "parameter's name": 'extern "C" __global__ void k(int*\n#\vinclude "@PATH@"\n) {}\n',
    "undefined name": _KERNEL + 'int x =\n#include "@PATH@"\n;\n',
    "undefined name by form feed": _KERNEL + 'int x =\n#\finclude "@PATH@"\n;\n',
    "unused variable": 'extern "C" __global__ void k() { int\n#include "@PATH@"\n; }\n',
    "string in the PTX": _SHOW + '__device__ char s[] = S(\n#\finclude "@PATH@"\n);\n' + _KERNEL,
    "stringized twice": _SHOW + '__device__ char s[] = T(\n#include "@PATH@"\n);\n' + _KERNEL,
    "warning": _SHOW + '#pragma message(S(\n#include "@PATH@"\n))\n' + _KERNEL,
    "embed in an array": '__device__ char s[] = {\n#embed "@PATH@"\n};\n' + _KERNEL,
    "embed with limit": '__device__ char s[] = {\n#embed "@PATH@" limit(4)\n};\n' + _KERNEL,
    "as the whole file": '#include "@PATH@"\n',
    # Whether it is there.
    "has_include": _KNOWN.format('__has_include("@PATH@")'),
    "has_include by pasting": "#define P(a, b) a##b\n"
    + _KNOWN.format('P(__has_, include)("@PATH@")'),
    "has_include with angles": "#define P(a, b) a##b\n"
    + _KNOWN.format("P(__has_, include)(<@PATH@>)"),
    "has_include by splice": _KNOWN.format('__has_\\\ninclude("@PATH@")'),
    "has_include of a macro": '#define F "@PATH@"\n' + _KNOWN.format("__has_include(F)"),
    "has_include_next": _KNOWN.format('__has_include_next("@PATH@")'),
    "has_embed": _KNOWN.format('__has_embed("@PATH@")'),
    "has_embed by pasting": "#define P(a, b) a##b\n" + _KNOWN.format('P(__has_, embed)("@PATH@")'),
    "has_include, relative": _KNOWN.format('__has_include("@REL@")'),
    "include of a file below": '#\finclude "@PATH@/below"\n',
    "has_include of a file below": _KNOWN.format('__has_include("@PATH@/below")'),
    "its dot": '#\finclude "@PATH@/."\n',
    "include twice": '#\finclude "@PATH@"\n#\finclude "@PATH@"\n',
    "pragma include_alias": '#pragma include_alias("a.h", "@PATH@")\n#include "a.h"\n',
    # What compilers do with names they are given.
    "line": '#line 1 "@PATH@"\nint x = undefined_name;\n',
    "line of gcc": '# 1 "@PATH@" 1 3\nint x = undefined_name;\n#error here\n',
    "line and __FILE__": '#line 1 "@PATH@"\n#include __FILE__\n',
    "pragma": '_Pragma("GCC dependency \\"@PATH@\\"")\n' + _KERNEL,
    "dependency": '#pragma GCC dependency "@PATH@" parse\n' + _KERNEL,
    "system header": '#pragma GCC pch_preprocess "@PATH@"\n' + _KERNEL,
    "module": 'import "@PATH@";\n' + _KERNEL,
    "incbin": 'asm(".incbin \\"@PATH@\\"");\n' + _KERNEL,
    "include of the assembler": 'asm(".include \\"@PATH@\\"");\n' + _KERNEL,
    "incbin in a kernel": '__global__ void k() { asm(".incbin \\"@PATH@\\";"); }\n',
    "file of PTX": '__global__ void k() { asm(".file 9 \\"@PATH@\\""); }\n',
    # The service itself.
    "environment": _shown('#\finclude "/proc/self/environ"'),
    "environment of the service": _shown('#\finclude "/proc/@PID@/environ"'),
    "its arguments": _shown('#\finclude "/proc/@PID@/cmdline"'),
    "by the root of the service": _shown('#\finclude "/proc/@PID@/root@PATH@"'),
    "by its own root": _shown('#\finclude "/proc/self/root@PATH@"'),
    "by its folder": _shown('#\finclude "/proc/self/cwd/@REL@"'),
    "by a thread": _shown('#\finclude "/proc/thread-self/root@PATH@"'),
    "by /dev/fd": _shown('#\finclude "/dev/fd/../root@PATH@"'),
    "by init": _shown('#\finclude "/proc/1/root@PATH@"'),
    "memory": _shown('#\finclude "/proc/self/mem"'),
}  # fmt: skip

_HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
_ENTRY = ".visible .entry k(.param .u64 p) { %s ret; }\n"

PTX: dict[str, str] = {
    "include": _HEAD + '.include "@PATH@"\n' + _ENTRY % "",
    "include before": '.include "@PATH@"\n' + _HEAD + _ENTRY % "",
    "preprocessor": _HEAD + '#include "@PATH@"\n' + _ENTRY % "",
    "preprocessor, form feed": _HEAD + '#\finclude "@PATH@"\n' + _ENTRY % "",
    "relative": _HEAD + '.include "@REL@"\n' + _ENTRY % "",
    "incbin": _HEAD + '.incbin "@PATH@"\n' + _ENTRY % "",
    "file": _HEAD + '.file 1 "@PATH@"\n' + _ENTRY % ".loc 1 1 0",
    "file with its size": _HEAD + '.file 1 "@PATH@", 1700000000, 64\n' + _ENTRY % ".loc 1 1 0",
    "line": _HEAD + '# 1 "@PATH@"\n' + _ENTRY % "",
    "line directive": _HEAD + '#line 1 "@PATH@"\n' + _ENTRY % "bad;",
    "section": _HEAD + '.section .debug_info { .b8 0 }\n.file 1 "@PATH@"\n' + _ENTRY % "",
    "pragma": _HEAD + _ENTRY % '.pragma "include @PATH@";',
    "environment": _HEAD + '.include "/proc/self/environ"\n' + _ENTRY % "",
    "environment of the service": _HEAD + '.include "/proc/@PID@/environ"\n' + _ENTRY % "",
}
