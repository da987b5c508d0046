// Names that Metal puts in the global namespace.
#pragma once

#define M_(T) \
    using metal::T##2; \
    using metal::T##3; \
    using metal::T##4; \
    using metal::packed_##T##2; \
    using metal::packed_##T##3; \
    using metal::packed_##T##4;
EACH_SCALAR_(M_)
M_(bfloat)
#undef M_
#define M_(T) \
    using metal::T##2x2; \
    using metal::T##3x3; \
    using metal::T##4x4; \
    using metal::T##2x4; \
    using metal::T##4x2; \
    using metal::T##3x4; \
    using metal::T##4x3;
M_(float)
M_(half)
#undef M_
using metal::as_type;
