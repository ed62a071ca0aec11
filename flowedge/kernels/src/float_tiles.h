// Products of bfloat16 by the tiles of AMX, for any number of rows: weights are read as they lie, and rows in pairs of
// inputs. An element is added up over 32 inputs at a time, whatever is beside it.
#pragma once

#include <vector>

#include "tiles.h"

namespace flowedge {

#if defined(__AMX_INT8__)

constexpr int64_t TILED_OUTPUTS = 2 * TILE_ROWS;  // that are computed at once

class FloatTiles {
  public:
    // Outputs [start, stop) of a few rows.
    static void block(const Rows& rows, int64_t row, int64_t count, const Linear& linear, int64_t start, int64_t stop,
                      float* output, int64_t output_stride) {
        FloatTiles(rows, row, count, linear).compute(start, stop, output, output_stride);
    }

  private:
    static constexpr int64_t STEP = 32;     // inputs of a tile
    static constexpr int64_t AHEAD = 1024;  // inputs from those that are multiplied to those that are fetched

    FloatTiles(const Rows& rows, int64_t row, int64_t count, const Linear& linear)
        : weight_((const uint16_t*)linear.weight), in_(linear.in), all_((linear.in + STEP - 1) / STEP * STEP),
          count_(count), width_(std::min(count, TILE_ROWS)) {
        // Weights that are no whole tiles with zeros behind them, and rows as [tiles, all inputs / 2, width, 2].
        const int64_t tiles = (count + TILE_ROWS - 1) / TILE_ROWS, size = TILED_OUTPUTS * all_ + tiles * width_ * all_;
        static thread_local std::vector<uint16_t> memory;
        if ((int64_t)memory.size() < size + 32) memory = std::vector<uint16_t>(size + 32);
        filled_ = memory.data() + (-(uintptr_t)memory.data() % 64) / sizeof(uint16_t);
        pairs_ = (uint32_t*)(filled_ + TILED_OUTPUTS * all_);
        for (int64_t m = 0; m < tiles * width_; m++) {
            uint32_t* to = pairs_ + m / width_ * width_ * all_ / 2 + m % width_;
            const uint16_t* from = (const uint16_t*)rows.values + (row + m) * rows.stride;
            for (int64_t k = 0; k < all_ / 2; k++) {  // zeros follow a row's numbers
                if (m < count)
                    std::memcpy(to + k * width_, from + 2 * k, sizeof(uint32_t));
                else
                    to[k * width_] = 0;
            }
        }
    }

    void compute(int64_t start, int64_t stop, float* output, int64_t output_stride) const {
        TileShapes shapes;
        for (int tile : {0, 1, 2, 3, 6, 7}) shapes.set(tile, TILE_ROWS, width_ * 4);
        for (int tile : {4, 5}) shapes.set(tile, TILE_ROWS, TILE_BYTES);
        shapes.use();
        for (int64_t n = start; n < stop; n += TILED_OUTPUTS) {
            const int64_t outputs = std::min(TILED_OUTPUTS, stop - n), whole = outputs < TILED_OUTPUTS ? 0 : in_ / STEP * STEP;
            for (int64_t i = 0; whole < all_ && i < TILED_OUTPUTS; i++) {
                uint16_t* to = filled_ + i * all_;
                std::memset(to + whole, 0, (all_ - whole) * sizeof(uint16_t));
                if (i < outputs) std::memcpy(to + whole, weight_ + (n + i) * in_ + whole, (in_ - whole) * sizeof(uint16_t));
            }
            const uint16_t* weight = weight_ + n * in_;
            for (int64_t m = 0; m < count_; m += 2 * TILE_ROWS) {
                alignas(64) float sums[4][TILE_ROWS * TILE_ROWS];
                const bool two = m + TILE_ROWS < count_;  // tiles of rows
                clear_tile<0>(), clear_tile<1>(), clear_tile<2>(), clear_tile<3>();
                if (two) {
                    add_two(weight, in_, m, 0, whole);
                    add_two(filled_, all_, m, whole, all_);
                } else {
                    add_one<0>(weight, in_, m, 0, whole);
                    add_one<0>(filled_, all_, m, whole, all_);
                    add_one<1>(weight + TILE_ROWS * in_, in_, m, 0, whole);
                    add_one<1>(filled_ + TILE_ROWS * all_, all_, m, whole, all_);
                }
                store_tile<0>(sums[0], width_ * 4), store_tile<1>(sums[1], width_ * 4);
                if (two) store_tile<2>(sums[2], width_ * 4), store_tile<3>(sums[3], width_ * 4);
                for (int64_t j = 0; j < std::min(count_ - m, 2 * TILE_ROWS); j++)
                    for (int64_t i = 0; i < outputs; i++)
                        output[(m + j) * output_stride + n + i] =
                            sums[j / TILE_ROWS * 2 + i / TILE_ROWS][i % TILE_ROWS * width_ + j % TILE_ROWS];
            }
        }
    }

    // Adds inputs [k, stop) of 2 tiles of outputs and 2 tiles of rows, which begin at `m`.
    void add_two(const uint16_t* weight, int64_t stride, int64_t m, int64_t k, int64_t stop) const {
        for (; k < stop; k += STEP) {
            load_tile<4>(weight + k, stride * 2), load_tile<5>(weight + TILE_ROWS * stride + k, stride * 2);
            load_tile<6>(pairs(m, k), width_ * 4), load_tile<7>(pairs(m + TILE_ROWS, k), width_ * 4);
            add_floats<0, 4, 6>(), add_floats<1, 5, 6>(), add_floats<2, 4, 7>(), add_floats<3, 5, 7>();
        }
    }

    // Adds those of a tile of outputs and a tile of rows to the tile SUMS. Few rows take as long as reading weights does.
    template <int SUMS>
    void add_one(const uint16_t* weight, int64_t stride, int64_t m, int64_t k, int64_t stop) const {
        for (; k + 2 * STEP <= stop; k += 2 * STEP) {
            const uint16_t* next = weight + (k + AHEAD < stride ? k + AHEAD : TILE_ROWS * stride + k + AHEAD - stride);
            for (int64_t i = 0; i < TILE_ROWS; i++)
                __builtin_prefetch(next + i * stride, 0, 2), __builtin_prefetch(next + i * stride + STEP, 0, 2);
            load_tile<4>(weight + k, stride * 2), load_tile<5>(weight + k + STEP, stride * 2);
            load_tile<6>(pairs(m, k), width_ * 4), load_tile<7>(pairs(m, k + STEP), width_ * 4);
            add_floats<SUMS, 4, 6>(), add_floats<SUMS, 5, 7>();
        }
        for (; k < stop; k += STEP) {
            load_tile<4>(weight + k, stride * 2), load_tile<6>(pairs(m, k), width_ * 4);
            add_floats<SUMS, 4, 6>();
        }
    }

    // The pairs of inputs from `k` on of a tile of rows.
    const uint32_t* pairs(int64_t m, int64_t k) const { return pairs_ + m * all_ / 2 + k / 2 * width_; }

    const uint16_t* weight_;
    const int64_t in_, all_;  // inputs, and those of whole tiles
    const int64_t count_, width_;
    uint16_t* filled_;  // [TILED_OUTPUTS, all inputs]
    uint32_t* pairs_;
};

#endif

}  // namespace flowedge
