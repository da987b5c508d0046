// expect: kernel 'k' must return void, not 'float'
#include <metal_stdlib>
using namespace metal;

kernel float k(device float *x [[buffer(0)]]) {
    return x[0];
}
