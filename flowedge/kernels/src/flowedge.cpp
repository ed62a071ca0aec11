// The functions that Python calls. Pointers and sizes were checked by the caller.
#include "layer.h"
#include "ranking.h"

#define EXPORTED __attribute__((visibility("default")))

using namespace flowedge;

extern "C" {

// Changes with every change of a structure or function; the caller compares it.
EXPORTED int flowedge_version() { return 11; }

// Computes the consecutive layers [first, stop) for the rows of `run`.
EXPORTED void flowedge_layers(const Layer* const* layers, int64_t first, int64_t stop, const Run* run, int threads) {
    Room& room = Room::of(layers, first, stop, *run, threads);
    Pool::shared().run(threads, [&](const Team& team) {
        for (int64_t i = first; i < stop; i++) LayerForward(*layers[i], i, *run, room, team).compute();
    });
}

// Takes the steps of all sessions in the recurrent layers among [first, stop), and computes no rows.
EXPORTED void flowedge_states(const Layer* const* layers, int64_t first, int64_t stop, const Run* run, int threads) {
    Room& room = Room::of(layers, first, stop, *run, threads);
    Pool::shared().run(threads, [&](const Team& team) {
        for (int64_t i = first; i < stop; i++)
            if (layers[i]->recurrence)
                LayerForward(*layers[i], i, *run, room, team).update_states(*layers[i]->recurrence);
    });
}

// output [rows, out] float32 = the product of rows [rows, in] of `format` with a linear layer.
EXPORTED void flowedge_linear(const Linear* linear, int32_t format, const void* rows, int64_t count, float* output,
                              int threads) {
    static thread_local std::vector<float> memory;
    const int64_t in = linear->in, groups = in / 16 + 1, values = Operand::floats(count, in);
    const size_t size = values + 2 * count * groups + threads * in + 16;
    if (memory.size() < size) memory = std::vector<float>(size);
    float* base = memory.data() + (-(uintptr_t)memory.data() % 64) / sizeof(float);
    const Operand operand{(int8_t*)base, base + values, (int32_t*)(base + values + count * groups)};
    float* floats = base + values + 2 * count * groups;
    Pool::shared().run(threads, [&](const Team& team) {
        const Range own = team.share(count);
        float* row = floats + team.member * in;
        for (int64_t m = own.start; m < own.stop; m++) {
            read_floats((Format)format, rows, m * in, in, row);
            write_operand(*linear, row, m, operand);
        }
        team.meet();
        multiply(operand.rows(count, *linear), *linear, output, linear->out, team);
    });
}

// Packs levels [out, in] from 0 on as those of a format of integers. Rows beyond `out` get the middle level.
EXPORTED void flowedge_pack(int32_t format, const uint8_t* from, int64_t out, int64_t in, uint8_t* to) {
    const int bits = format == INT8 ? 8 : format;
    auto level = [&](int64_t n, int64_t k) { return n < out ? from[n * in + k] : (uint8_t)(1 << (bits - 1)); };
    for (int64_t block = 0; block * LANES < out; block++)
        for (int64_t k = 0; k < in; k += 32)
            for (int word = 0; word < bits; word++)
                for (int64_t n = block * LANES; n < (block + 1) * LANES; n++)
                    for (int64_t i = 0; i < 4; i++) {
                        auto of_step = [&](int step) { return level(n, k + 4 * step + i); };
                        uint8_t byte = 0;
                        if (bits == 8) {
                            byte = of_step(word);
                        } else if (word < 4) {
                            byte = (uint8_t)((of_step(2 * word) & 15) | of_step(2 * word + 1) << 4);
                        } else if (bits == 5) {
                            for (int step = 0; step < 8; step++) byte |= (uint8_t)((of_step(step) >> 4) << step);
                        } else {
                            const int first = 4 * (word - 4);
                            for (int step = 0; step < 4; step++)
                                byte |= (uint8_t)((of_step(first + step) >> 4) << 2 * step);
                        }
                        *to++ = byte;
                    }
}

// The likeliest columns of each row of logits [rows, columns] float32, by rank_row: found and logs are [rows, most].
// noise: for each row, float32 [columns] or null.
EXPORTED void flowedge_rank(const float* logits, int64_t rows, int64_t columns, int64_t most, const float* const* noise,
                   float factor, float scale, int64_t* found, double* logs, int threads) {
    Pool::shared().run(threads, [&](const Team& team) {
        static thread_local std::vector<float> room;
        if ((int64_t)room.size() < columns) room.resize(columns);
        const Range own = team.share(rows);
        for (int64_t m = own.start; m < own.stop; m++)
            rank_row(logits + m * columns, Noise{noise[m], factor, scale}, columns, most, room.data(), found + m * most,
                     logs + m * most);
    });
}

// Root mean square normalisation of rows [count, size] of `format`, in place.
EXPORTED void flowedge_norm(int32_t format, void* rows, int64_t count, int64_t size, const float* weight,
                            float epsilon) {
    static thread_local std::vector<float> row;
    if ((int64_t)row.size() < size) row.resize(size);
    for (int64_t m = 0; m < count; m++) {
        read_floats((Format)format, rows, m * size, size, row.data());
        normalise(row.data(), weight, size, epsilon, row.data());
        write_floats((Format)format, rows, m * size, size, row.data());
    }
}
}
