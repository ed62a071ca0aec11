// The tiles of AMX: eight registers of up to 16 rows of 64 bytes.
#pragma once

#include "linear.h"

namespace flowedge {

#if defined(__AMX_INT8__)

constexpr int64_t TILE_ROWS = 16, TILE_BYTES = 64;

// gcc's own functions take no tile numbers from a template.
template <int TILE>
inline void clear_tile() {
    asm volatile("tilezero %%tmm%c0" : : "i"(TILE));
}

// `stride`: bytes from one row of the memory to the next.
template <int TILE>
inline void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0, %1, 1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(TILE) : "memory");
}

template <int TILE>
inline void store_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0, %1, 1)" : : "r"(to), "r"(stride), "i"(TILE) : "memory");
}

// Adds the products of signed bytes: [i, j] += the sum over k, c of A [i, k, c] * B [k, j, c], for 4 bytes c.
template <int SUMS, int A, int B>
inline void add_integers() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(A), "i"(B));
}

// Adds the products of bfloat16 likewise, for pairs c: those of each c are added up over k, then both sums.
template <int SUMS, int A, int B>
inline void add_floats() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(A), "i"(B));
}

// The shapes of a thread's tiles; `use` begins their use, and the object's end ends it.
class TileShapes {
  public:
    void set(int tile, int64_t rows, int64_t bytes) {
        shapes_.rows[tile] = (uint8_t)rows, shapes_.bytes[tile] = (uint16_t)bytes;
    }

    void use() const { asm volatile("ldtilecfg %0" : : "m"(shapes_)); }

    TileShapes() = default;
    TileShapes(const TileShapes&) = delete;
    ~TileShapes() { asm volatile("tilerelease"); }

  private:
    struct {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {};  // of a row of each tile
        uint8_t rows[16] = {};
    } shapes_;
};

#endif

}  // namespace flowedge
