//! Awkward sources: what must come out of them, and what must be said about those that are not of the subset.

use super::{Kind, Target, Translation, metal_source, translate, translate_only};

/// A folder of kernels with these files.
fn folder(files: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<String> {
    move |name| files.iter().find(|(file, _)| *file == name).map(|(_, text)| (*text).to_owned())
}

fn sim(source: &'static str) -> Result<Translation, String> {
    translate("k.metal", &|name| (name == "k.metal").then(|| source.to_owned()), Target::Sim)
}

fn cuda(source: &'static str) -> Translation {
    let read = |name: &str| match name {
        "k.metal" => Some(source.to_owned()),
        "dialect/cuda.h" => Some("#define HEAD\n".to_owned()),
        _ => None,
    };
    translate("k.metal", &read, Target::Cuda).unwrap()
}

/// The line of the source that the `#line`s of a text say `needle` is on.
fn line_of(text: &str, needle: &str) -> String {
    let (mut file, mut line) = (String::new(), 0);
    for row in text.lines() {
        if let Some(rest) = row.strip_prefix("#line ") {
            let (number, name) = rest.split_once(' ').unwrap();
            (line, file) = (number.parse::<usize>().unwrap(), name.trim_matches('"').to_owned());
            continue;
        }
        if row.contains(needle) {
            return format!("{file}:{line}");
        }
        line += 1;
    }
    panic!("no `{needle}` in:\n{text}")
}

const NORM: &str = "#include <metal_stdlib>
using namespace metal;
struct Args { uint width; float eps; };
/* a comment
   of two lines with kernel void no( in it */
kernel void norm(device const float *x [[buffer(0)]],
                 device float *y [[buffer(1)]], constant Args &args [[buffer(2)]],
                 uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]]) {
  threadgroup float parts[8 + 24]; threadgroup bfloat other[2][16];
  threadgroup float *p = parts;   // a pointer, not an array
  parts[at] = x[at]; // kernel void
  if (at < args.width) { y[at] = p[at] + 1.5e-3f; }
}
";

#[test]
fn a_kernel_is_described_and_keeps_its_lines() {
    let Translation { text, kernels } = sim(NORM).unwrap();
    let [norm] = &kernels[..] else { panic!("{kernels:?}") };
    let kinds: Vec<(&str, &Kind, &str)> = norm.parameters.iter().map(|one| (one.name.as_str(), &one.kind, one.ty.as_str())).collect();
    let expected = [
        ("x", &Kind::Buffer { index: 0, writable: false }, "const float *"),
        ("y", &Kind::Buffer { index: 1, writable: true }, "float *"),
        ("args", &Kind::Args { index: 2 }, "const Args &"),
        ("group", &Kind::Builtin("threadgroup_position_in_grid"), "uint3"),
        ("at", &Kind::Builtin("thread_index_in_threadgroup"), "uint"),
    ];
    assert_eq!(kinds, expected);
    let arrays: Vec<&str> = norm.threadgroup_arrays.iter().map(|array| array.name.as_str()).collect();
    assert_eq!(arrays, ["parts", "other"]);
    assert_eq!(line_of(&text, "struct Args"), "k.metal:3");
    assert_eq!(line_of(&text, "auto &parts = ly_shared.parts; auto &other = ly_shared.other;"), "k.metal:9");
    assert_eq!(line_of(&text, " float *p = parts"), "k.metal:10");
    assert_eq!(line_of(&text, "1.5e-3f"), "k.metal:12");
    assert!(text.contains("{\"x\", 0, 'r', 0}, {\"y\", 1, 'w', 0}, {\"args\", 2, 'a', sizeof(Args)}, "), "{text}");
    assert!(text.contains("body(ly::Ptr{g.buffers[0]}, ly::Ptr{g.buffers[1]}, ly::Ref{g.buffers[2]}, g.position, g.lane)"), "{text}");
    assert!(!text.contains("comment") && !text.contains("device") && !text.contains("[["), "{text}");
}

#[test]
fn cuda_takes_restricted_pointers_and_the_struct_by_value() {
    let text = cuda(NORM).text;
    assert!(text.contains("(const float * __restrict__ x, float * __restrict__ y, const Args args)"), "{text}");
    assert!(text.contains("const uint3 group = uint3(blockIdx.x, blockIdx.y, blockIdx.z); const uint at = threadIdx.x;"), "{text}");
    assert_eq!(line_of(&text, "__shared__ __align__(16) float parts [ 8 + 24 ];"), "k.metal:9");
    assert!(text.starts_with("#line 1 \"dialect/cuda.h\"\n#define HEAD\n"), "{text}");
}

#[test]
fn cuda_is_told_where_a_kernel_waits_releases_and_how_many_fit() {
    let silent = "kernel void k(device const float *x [[buffer(0)]], device float *y [[buffer(1)]]) { y[0] = x[0]; }\n";
    let text = cuda(silent).text;
    assert!(text.contains("__global__ void ly_k(") && text.contains("ly::release_next(); ly_wait_previous(x); "), "{text}");
    let rows = "kernel void k(device float *y [[buffer(0)]]) { threadgroup ly_swizzled<16> rows[2]; y[0] = 0.0f; }\n";
    assert!(cuda(rows).text.contains("__shared__ __align__(1024) ly_swizzled"), "rows for wgmma start at 1024 bytes");
    let outspoken = "kernel void k(device const float *x [[buffer(0)]], device float *y [[buffer(1)]]) {
  ly_resident<WIDE, 2>();
  ly_wait_previous(x);
  ly_release_next();
  y[0] = x[0];
}
";
    let text = cuda(outspoken).text;
    assert!(text.contains("__global__ void __launch_bounds__(WIDE , 2) ly_k("), "{text}");
    assert_eq!((text.matches("release_next").count(), text.matches("ly_wait_previous").count()), (1, 1), "{text}");
}

#[test]
fn a_kernel_may_say_that_its_threadgroup_arrays_need_room() {
    const SOURCE: &str = "template <uint N>
kernel void k(device float *y [[buffer(0)]]) {
  ly_threadgroup_kib<65>();
  threadgroup ly_swizzled<N> rows[2];
  threadgroup float sums[N];
  y[0] = sums[0];
}
LY_KERNEL(k_256, k<256>)
";
    let Translation { text, kernels } = cuda(SOURCE);
    assert_eq!(kernels[0].threadgroup_kib, 65);
    let arrays = "constexpr uint N = 256; struct Shared { alignas(1024) ly_swizzled < N > rows [ 2 ]; alignas(16) float sums [ N ]; }; ";
    assert!(text.contains(arrays), "{text}");
    assert!(text.contains("static_assert(sizeof(Shared) <= 65 * 1024, ") && !text.contains("__shared__ __align__(16)"), "{text}");
    assert!(text.contains("extern __shared__ __align__(1024) unsigned char room[]; extern \"C\" __global__ void ly_k_256("), "{text}");
    assert_eq!(line_of(&text, "auto &rows = reinterpret_cast<Shared *>(room)->rows;"), "k.metal:4");
    let text = sim(SOURCE).unwrap().text;
    assert!(text.contains("static_assert(LY_THREADGROUP_BYTES(sizeof(Shared)) <= 65 * 1024, "), "{text}");
}

#[test]
fn templates_become_one_entry_an_instance() {
    let source = "template <uint N> inline uint twice(uint x) { return x * N; }
constant uint WIDE = 4;
template <uint N, bool SQUARED>
kernel void sum(device float *y [[buffer(0)]]) {
  threadgroup float t[N];
  t[0] = SQUARED ? float(twice<N>(1)) : 0.0f;
  y[0] = t[0];
}
LY_KERNEL(sum_1, sum<1, false>)
constant uint AFTER = 2;
LY_KERNEL(sum_wide, sum<WIDE * AFTER, (1 < 2)>);
inline uint last() { return 1; }
";
    let Translation { text, kernels } = sim(source).unwrap();
    let names: Vec<&str> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names, ["sum_1", "sum_wide"]);
    assert!(text.contains("namespace ly_entry_sum_1 { constexpr uint N = 1; constexpr bool SQUARED = false; "), "{text}");
    assert!(text.contains("constexpr uint N = WIDE * AFTER; constexpr bool SQUARED = ( 1 < 2 ); "), "{text}");
    assert_eq!(text.matches("auto &t = ly_shared.t;").count(), 2);
    assert_eq!(line_of(&text, "auto &t = ly_shared.t;"), "k.metal:5");
    assert_eq!(line_of(&text, "static constexpr uint AFTER"), "k.metal:10");
    assert_eq!(line_of(&text, "inline uint last"), "k.metal:12");
    assert_eq!(line_of(&text, "inline uint twice"), "k.metal:1");
    assert!(!text.contains("LY_KERNEL"), "{text}");
    let text = cuda(source).text;
    assert!(text.contains("template <uint N> __device__ __forceinline__ uint twice"), "{text}");
    assert!(text.contains("namespace ly_entry_sum_wide { constexpr uint N = WIDE * AFTER;"), "{text}");
}

#[test]
fn only_the_wanted_entries_are_written() {
    let source = "kernel void a(device float *y [[buffer(0)]]) { y[0] = 1; }\nkernel void b(device float *y [[buffer(0)]]) { y[0] = 2; }\n";
    let read = |name: &str| (name == "k.metal").then(|| source.to_owned());
    let Translation { text, kernels } = translate_only("k.metal", &read, Target::Sim, &|name| name == "b").unwrap();
    assert_eq!(kernels.iter().map(|kernel| kernel.name.as_str()).collect::<Vec<_>>(), ["b"]);
    assert!(!text.contains("y[0] = 1") && text.contains("y[0] = 2"), "{text}");
    assert_eq!(line_of(&text, "y[0] = 2"), "k.metal:2");
}

const INCLUDES: &[(&str, &str)] = &[
    (
        "k.metal",
        "#include \"dialect/metal.h\"\n#include \"lib/a.h\"\n#include \"lib/b.h\"\nkernel void k(device float *y [[buffer(0)]]) { y[0] = a() + b(); }\n",
    ),
    ("lib/a.h", "#pragma once\n#include \"lib/b.h\"\ninline float a() { return b(); }\n"),
    ("lib/b.h", "#pragma once\nconstant float TABLE[2] = {1.0f, 2.0f};\ninline float b() {\n  return TABLE[1];\n}\n"),
    ("dialect/metal.h", "#pragma once\n#include <metal_stdlib>\n#include \"dialect/words.h\"\n#define LY_KERNEL(a, b)\n"),
    ("dialect/words.h", "using namespace metal;\n"),
    ("dialect/cuda.h", "\n"),
];

#[test]
fn includes_are_read_once_and_keep_their_own_lines() {
    let read = folder(INCLUDES);
    let text = translate("k.metal", &read, Target::Sim).unwrap().text;
    assert_eq!(text.matches("inline float b()").count(), 1);
    assert_eq!(line_of(&text, "return TABLE[1]"), "lib/b.h:4");
    assert_eq!(line_of(&text, "inline float a()"), "lib/a.h:3");
    assert_eq!(line_of(&text, "y[0] = a() + b()"), "k.metal:4");
    assert_eq!(line_of(&text, "static constexpr float TABLE[2]"), "lib/b.h:2");
    let text = translate("k.metal", &read, Target::Cuda).unwrap().text;
    assert!(text.contains("static __constant__ const float TABLE[2]"), "{text}");
}

#[test]
fn metal_gets_one_text_with_its_own_header_first() {
    let text = metal_source("k.metal", &folder(INCLUDES)).unwrap();
    let at = |needle: &str| text.find(needle).unwrap_or_else(|| panic!("no `{needle}` in:\n{text}"));
    assert!(at("#include <metal_stdlib>") < at("using namespace metal;"));
    assert!(at("using namespace metal;") < at("#define LY_KERNEL"));
    assert!(at("#define LY_KERNEL") < at("constant float TABLE"));
    assert!(at("inline float b()") < at("inline float a()"));
    assert!(text.contains("kernel void k(device float *y [[buffer(0)]])"));
    assert_eq!(text.matches("inline float b()").count(), 1);
    assert_eq!(line_of(&text, "return TABLE[1]"), "lib/b.h:4");
    assert!(!text.contains("#include \""), "{text}");
}

#[test]
fn what_is_not_of_the_subset_is_named_with_its_line() {
    let cases = [
        ("\nkernel float f() {}", "k.metal:2: expected `kernel void NAME(`"),
        ("kernel void f(device float *y) {}", "k.metal:1: parameter `float * y`: expected an attribute in [[ ]]"),
        ("kernel void f(\n device float *y [[buffer(1)]]) {}", "k.metal:1: kernel `f`: expected buffers 0 to 0, found [1]"),
        (
            "kernel void f(device float *y [[buffer(0)]], constant A &a [[buffer(2)]]) {}",
            "expected the argument struct at buffer(1), found buffer(2)",
        ),
        ("kernel void f(constant A &a [[buffer(0)]], constant A &b [[buffer(0)]]) {}", "expected one argument struct at most"),
        (
            "kernel void f(uint i [[thread_position_in_grid]]) {}",
            "`thread_position_in_grid` is not one of buffer(n), threadgroup_position_in_grid,",
        ),
        (
            "kernel void f(constant float *t [[buffer(0)]]) {}",
            "expected `device T *`, `device const T *` or `constant T &` with [[buffer(n)]]",
        ),
        ("kernel void f(threadgroup float *t [[threadgroup(0)]]) {}", "threadgroup arrays are declared in the body"),
        ("kernel void f(device float *y [[buffer(0)]]);", "expected the kernel's body after its parameters"),
        (
            "kernel void f(device float *y [[buffer(0)]]) {\n\n  threadgroup float a[2], b[2];\n}",
            "k.metal:3: declare one threadgroup array a statement",
        ),
        ("kernel void f(device float *y [[buffer(0)]]) { threadgroup float a[1] = {0}; }", "without a value"),
        (
            "kernel void f(device float *y [[buffer(0)]]) { threadgroup float a[1]; { threadgroup int a[2]; } }",
            "there is a threadgroup array `a` in this kernel already",
        ),
        ("kernel void f(device float *y [[buffer(0)]]) { y[0] = 1;", "k.metal:1: `{` is never closed"),
        (
            "kernel void f(device float *y [[buffer(0)]]) {}\nkernel void f(device float *y [[buffer(0)]]) {}",
            "k.metal:2: there is an entry `f` already",
        ),
        (
            "template <int A> kernel void f(device float *y [[buffer(0)]]) {}",
            "template parameter `int A`: expected `uint NAME` or `bool NAME`",
        ),
        (
            "kernel void f(device float *y [[buffer(0)]]) {\n ly_threadgroup_kib<2 * 32>(); }",
            "k.metal:2: expected `ly_threadgroup_kib<N>()`, N a number",
        ),
        ("\nLY_KERNEL(a, f<1>)", "k.metal:2: there is no kernel template `f` above"),
        (
            "template <uint A> kernel void f(device float *y [[buffer(0)]]) {}\nLY_KERNEL(a, f<1, 2>)",
            "k.metal:2: kernel template `f` has 1 parameters, this names 2",
        ),
        (
            "template <uint A> kernel void f(device float *y [[buffer(0)]]) {}\nLY_KERNEL(f)",
            "k.metal:2: expected `LY_KERNEL(entry, template<1, true>)`",
        ),
        ("LY_KERNEL", "k.metal:1: expected `LY_KERNEL(entry, template<1, true>)`"),
        ("#define A 1", "k.metal:1: `#define A 1` is not of the kernel language"),
        ("\n\n#ifdef A", "k.metal:3: `#ifdef A` is not of the kernel language"),
        ("#include \"lib/none.h\"", "k.metal:1: there is no `lib/none.h` in the kernels' folder"),
        ("#include lib", "k.metal:1: expected `#include \"path\"` or `#include <name>`"),
        ("constant float x = \"abc\n\";", "k.metal:1: a string that does not end on its line"),
        ("/* never closed", ""),
        ("kernel", "k.metal:1: expected `kernel void NAME(`"),
        ("template <uint A", "k.metal:1: `<` is never closed"),
    ];
    for (source, expected) in cases {
        let said = sim(source).err().unwrap_or_default();
        assert!(said.contains(expected), "{source}\nexpected {expected}\nfound {said}");
        assert_eq!(said.is_empty(), expected.is_empty(), "{source}\nfound {said}");
    }
    let said = translate("none.metal", &|_| None, Target::Sim).unwrap_err();
    assert_eq!(said, "none.metal: there is no such file in the kernels' folder");
}
