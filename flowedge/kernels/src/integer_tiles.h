// Products of packed integers by the tiles of AMX, for many rows. The sum of a group's inputs is the same integer as that of
// the other kernels, and groups are added up in the same order, so that the bits are the same as well.
#pragma once

#include <vector>

#include "integers.h"
#include "tiles.h"

namespace flowedge {

#if defined(__AMX_INT8__)

constexpr int64_t TILED_FROM = 13;      // rows, of a call or behind its last whole tile, from which on a tile is faster
constexpr int64_t TILED_INPUTS = 1024;  // of a block of outputs, whose levels a first-level cache holds

// The rows of `count` that tiles compute: the first ones.
inline int64_t tiled_rows(int64_t count) {
    const int64_t last = count % TILE_ROWS;
    return last >= TILED_FROM ? count : count - last;
}

// TILE_ROWS rows from a group of inputs on.
struct TileRows {
    const int8_t* values;
    int64_t stride;
    const float *scales, *sums;  // [TILE_ROWS, groups]: as those of Rows, and their product with the sums of groups
};

template <Format F>
class IntegerTiles {
  public:
    static void block(const Rows& rows, int64_t row, int64_t count, const Linear& linear, int64_t start, int64_t stop,
                      float* output, int64_t output_stride) {
        IntegerTiles(rows, row, count, linear).compute(start, stop, output, output_stride);
    }

  private:
    using Kernel = IntegerKernel<F>;
    static constexpr int SUMS = 0, ROWS = 1, LEVELS = 2;  // tiles
    typedef uint8_t Unsigned __attribute__((vector_size(W * 4)));

    IntegerTiles(const Rows& rows, int64_t row, int64_t count, const Linear& linear)
        : linear_(linear), group_(linear.group), groups_(linear.in / linear.group), count_(count),
          own_scales_((linear.zeros ? 2 : 1) * LANES), step_(group_ % 64 == 0 ? 64 : group_ % 32 == 0 ? 32 : 16),
          whole_(count / TILE_ROWS * TILE_ROWS), tiled_((count + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS),
          values_((const int8_t*)rows.values + row * linear.in), scales_(rows.scales + row * groups_) {
        const int64_t last = tiled_ - whole_;  // rows of a tile that is not whole
        // The sums of the rows' groups, the levels, the products; then the last tile's scales and its values.
        const int64_t sums = tiled_ * groups_, levels = at_once() * group_ * LANES / 4, products = tiled_ * LANES;
        static thread_local std::vector<float> memory;
        const size_t size = levels + products + sums + last * groups_ + last * linear.in / 4 + 16;
        if (memory.size() < size) memory = std::vector<float>(size);
        products_ = memory.data() + (-(uintptr_t)memory.data() % 64) / sizeof(float);
        levels_ = (int8_t*)(products_ + products);
        sums_ = products_ + products + levels;
        last_scales_ = sums_ + sums;
        last_values_ = (int8_t*)(last_scales_ + last * groups_);
        const int32_t* own_sums = rows.sums + row * groups_;
        for (int64_t i = 0; linear.zeros && i < count * groups_; i++) sums_[i] = (float)own_sums[i] * scales_[i];
        if (!last) return;
        std::memset(sums_ + count * groups_, 0, (tiled_ - count) * groups_ * sizeof(float));
        std::memset(last_scales_, 0, last * groups_ * sizeof(float));
        std::memcpy(last_scales_, scales_ + whole_ * groups_, (count - whole_) * groups_ * sizeof(float));
        std::memset(last_values_, 0, last * linear.in);
        std::memcpy(last_values_, values_ + whole_ * linear.in, (count - whole_) * linear.in);
    }

    int64_t at_once() const { return std::min(groups_, std::max<int64_t>(2, TILED_INPUTS / group_ / 2 * 2)); }  // groups

    void compute(int64_t start, int64_t stop, float* output, int64_t output_stride) const {
        TileShapes shapes;
        shapes.set(SUMS, TILE_ROWS, TILE_BYTES);
        shapes.set(ROWS, TILE_ROWS, step_);
        shapes.set(LEVELS, step_ / 4, TILE_BYTES);
        shapes.use();
        const int64_t words = linear_.in / 32 * Kernel::WORDS * LANES;  // of a block
        for (int64_t b = start; b < stop; b++) {
            std::memset(products_, 0, tiled_ * LANES * sizeof(float));
            for (int64_t g = 0; g < groups_; g += at_once())
                add((const int32_t*)linear_.weight + b * words, linear_.scales + b * groups_ * own_scales_, g);
            const int64_t own = std::min<int64_t>(linear_.out - b * LANES, LANES);
            for (int64_t m = 0; m < count_; m++)
                std::memcpy(output + m * output_stride + b * LANES, products_ + m * LANES, own * sizeof(float));
        }
    }

    // Adds the products over groups from `g` on to those of all rows with a block of outputs.
    void add(const int32_t* weight, const uint16_t* scales, int64_t g) const {
        const int64_t count = std::min(at_once(), groups_ - g), from = g * group_, inputs = count * group_;
        unpack(weight, from, inputs);
        // The words that come next, of this block or the next one, a part with each group of each tile.
        constexpr int64_t LINE = 16;
        const int64_t lines = group_ * Kernel::WORDS * LANES / 32 / LINE, tiles = tiled_ / TILE_ROWS;
        const int64_t ahead = (lines + tiles - 1) / tiles;
        const int32_t* next = weight + (from + inputs) / 32 * Kernel::WORDS * LANES;
        for (int64_t m = 0; m < tiled_; m += TILE_ROWS, next += ahead * count * LINE) {
            const bool whole = m < whole_;
            const TileRows rows{(whole ? values_ + m * linear_.in : last_values_) + from, linear_.in,
                                (whole ? scales_ + m * groups_ : last_scales_) + g, sums_ + m * groups_ + g};
            auto add = linear_.zeros ? &IntegerTiles::template add<true> : &IntegerTiles::template add<false>;
            (this->*add)(rows, scales + g * own_scales_, count, next, ahead * LINE, products_ + m * LANES);
        }
    }

    // Adds the products of a tile's rows over `count` groups to `products` [TILE_ROWS, LANES].
    template <bool ZEROS>
    void add(const TileRows& rows, const uint16_t* scales, int64_t count, const int32_t* next, int64_t ahead,
             float* products) const {
        // A tile is computed and stored some groups before its sums are read, because that takes long.
        constexpr int64_t EARLIER = 2, KEPT = 4;
        alignas(64) int32_t sums[KEPT][TILE_ROWS * LANES];
        Floats acc[TILE_ROWS];
#pragma GCC unroll 16
        for (int64_t m = 0; m < TILE_ROWS; m++) acc[m] = load<Floats>(products + m * LANES);
        for (int64_t g = 0; g < count + EARLIER; g++) {
            if (g < count) {
                for (int64_t i = 0; i < ahead; i += 16) __builtin_prefetch(next + g * ahead + i, 0, 2);
                multiply(rows.values + g * group_, rows.stride, levels_ + g * group_ * LANES, sums[g % KEPT]);
            }
            const int64_t done = g - EARLIER;
            if (done < 0) continue;
            const int32_t* exact = sums[done % KEPT];
            const Floats scale = scale_at(scales + done * own_scales_);
            const Floats zero = ZEROS ? scale_at(scales + done * own_scales_ + LANES) : Floats{};
#pragma GCC unroll 16
            for (int64_t m = 0; m < TILE_ROWS; m++) {
                const Floats sum = __builtin_convertvector(load<Ints>(exact + m * LANES), Floats);
                acc[m] = fused(sum, scale * rows.scales[m * groups_ + done], acc[m]);
                if constexpr (ZEROS) acc[m] = fused(all(rows.sums[m * groups_ + done]), zero, acc[m]);
            }
        }
#pragma GCC unroll 16
        for (int64_t m = 0; m < TILE_ROWS; m++) store(products + m * LANES, acc[m]);
    }

    // The sums [TILE_ROWS, LANES] of a group.
    void multiply(const int8_t* rows, int64_t stride, const int8_t* levels, int32_t* to) const {
        clear_tile<SUMS>();
        for (int64_t k = 0; k < group_; k += step_) {
            load_tile<ROWS>(rows + k, stride);
            load_tile<LEVELS>(levels + k * LANES, TILE_BYTES);
            add_integers<SUMS, ROWS, LEVELS>();
        }
        store_tile<SUMS>(to, TILE_BYTES);
    }

    Floats scale_at(const uint16_t* from) const {
        return linear_.halves ? from_float16(load<Halves>(from)) : from_bfloat16(load<Halves>(from));
    }

    // Writes the levels of inputs [k, k + count) of a block, around their middle, as [count / 4, LANES, 4].
    void unpack(const int32_t* weight, int64_t k, int64_t count) const {
        for (int64_t i = 0; i < count; i += 8) {
            Ints first, second;
            Kernel::levels(weight + (k + i) / 32 * Kernel::WORDS * LANES, (k + i) % 32 / 4, first, second);
            store(levels_ + i * LANES, (Unsigned)first - (uint8_t)Kernel::MIDDLE);
            store(levels_ + (i + 4) * LANES, (Unsigned)second - (uint8_t)Kernel::MIDDLE);
        }
    }

    const Linear& linear_;
    const int64_t group_, groups_, count_, own_scales_, step_;
    const int64_t whole_, tiled_;  // rows of whole tiles, and of all tiles
    const int8_t* values_;
    const float* scales_;
    float *products_, *sums_, *last_scales_;
    int8_t *levels_, *last_values_;
};

#endif

}  // namespace flowedge
