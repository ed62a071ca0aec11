// A gated delta net (Yang et al., arXiv 2412.06464): rows update a state along their path, and read it.
//
// The state of a row is its parent's, one update further. One state of a session is held, that behind its committed
// rows; what the rows since then update by is held for each of them, and a forward takes the steps from the held state
// to its rows anew. So a row's bits depend on its path alone.
#pragma once

#include <cmath>
#include <cstring>

#include "products.h"

namespace flowedge {

struct DeltaNet {
    int64_t key_heads, value_heads, key_size, value_size;
    int64_t inputs;      // rows of a path that the convolution reads
    int64_t tiled;       // whether heads of values that share a key head lie key_heads apart, otherwise side by side
    Linear in[4];        // to what is convolved, the output's gates, the rates of update, the decays
    const float* convolution;           // [inputs, convolved]
    const float *decay, *decay_bias;    // [value_heads]: -e^A, and what is added to the decays
    const float* norm;                  // [value_size]

    int64_t convolved() const { return 2 * key_heads * key_size + value_heads * value_size; }
    int64_t values() const { return value_heads * value_size; }
    int64_t projected() const { return convolved() + values() + 2 * value_heads; }
    int64_t stored() const { return convolved() + 2 * value_heads; }  // of a recent row
    static int64_t width_of(int64_t size) { return (size + 15) / 16 * 16; }
    int64_t width() const { return width_of(value_size); }        // of a row of a state, zeros included
    int64_t state() const { return key_size * width(); }          // floats of a head's state
};

// A gated short convolution, which reads the rows of a path and has no other state. A row's products are gates of what
// is convolved, gates of the result, and what is convolved.
struct ShortConvolution {
    int64_t inputs;       // rows of a path that are read
    Linear in;            // to three times the width
    const float* weight;  // [inputs, width]
};

// What a session's rows own in a layer: the held state [value_heads, key_size, width], and recent rows.
struct States {
    float *state, *recent;
};

// The steps of a session's rows, the same in all layers; flowedge/models/recurrent/row_steps.py says what they are.
struct Steps {
    int64_t count;
    const int64_t *rows;  // [count, inputs], places of recent rows
    const int64_t *sources, *targets, *outputs;
    int64_t places;  // states beside the held one
    int64_t first;   // place of the forward's first row
};

// Writes what a row updates by, from its products: what is convolved, then rates and decays.
inline void write_recent(const DeltaNet& net, const float* projected, float* recent) {
    std::memcpy(recent, projected, net.convolved() * sizeof(float));
    const float* rates = projected + net.convolved() + net.values();
    float* to = recent + net.convolved();
    for (int64_t h = 0; h < net.value_heads; h++) {
        const float raised = rates[net.value_heads + h] + net.decay_bias[h];
        const float steps = raised > 20.0f ? raised : std::log1p(exponential(all(raised))[0]);
        to[h] = logistic(rates[h]);
        to[net.value_heads + h] = exponential(all(net.decay[h] * steps))[0];
    }
}

// The convolution [width] of the rows of a path, multiplied by gates, to `to`; `recent` are rows of this width.
inline void convolve_gated(const ShortConvolution& convolution, const float* recent, const int64_t* rows, int64_t width,
                           const float* gates, float* to) {
    for (int64_t i = 0; i < width; i += W) {
        const int64_t own = std::min<int64_t>(W, width - i);
        Floats total{};
        for (int64_t t = 0; t < convolution.inputs; t++)
            total = fused(load_part(recent + rows[t] * width + i, own), load_part(convolution.weight + t * width + i, own),
                          total);
        total = total * load_part(gates + i, own);
        std::memcpy(to + i, &total, own * sizeof(float));
    }
}

// One head of values of a session, computed by one thread.
class DeltaHead {
  public:
    static int64_t floats(const DeltaNet& net, int64_t places) {
        return 2 * DeltaNet::width_of(net.key_size) + 2 * net.width() + places * net.state();
    }

    DeltaHead(const DeltaNet& net, const States& states, const Steps& steps, int64_t head, float* memory)
        : net_(net), states_(states), steps_(steps), head_(head), query_(memory),
          key_(query_ + DeltaNet::width_of(net.key_size)), value_(key_ + DeltaNet::width_of(net.key_size)),
          output_(value_ + net.width()), places_(output_ + net.width()) {}

    // Calls take(output row, values [value_size]) for each step that is read.
    template <class Take>
    void run(const Take& take) {
        const int64_t shared = net_.value_heads / net_.key_heads, keys = net_.key_heads * net_.key_size;
        const int64_t key_head = net_.tiled ? head_ % net_.key_heads : head_ / shared;
        for (int64_t step = 0; step < steps_.count; step++) {
            const int64_t* rows = steps_.rows + step * net_.inputs;
            const bool read = steps_.outputs[step] >= 0;
            convolve(rows, keys + key_head * net_.key_size, net_.key_size, key_);
            convolve(rows, 2 * keys + head_ * net_.value_size, net_.value_size, value_);
            scale(key_, 1.0f);
            if (read) {
                convolve(rows, key_head * net_.key_size, net_.key_size, query_);
                scale(query_, 1.0f / std::sqrt((float)net_.key_size));
            }
            const float* rates = states_.recent + rows[net_.inputs - 1] * net_.stored() + net_.convolved();
            update(place(steps_.sources[step]), place(steps_.targets[step]), rates[head_],
                   rates[net_.value_heads + head_], read);
            if (read) take(steps_.outputs[step], output_);
        }
    }

  private:
    float* place(int64_t index) const {
        return index ? places_ + (index - 1) * net_.state() : states_.state + head_ * net_.state();
    }

    // The activated convolution of some channels of the rows of a path; zeros up to the padded width follow.
    void convolve(const int64_t* rows, int64_t channel, int64_t size, float* to) const {
        for (int64_t i = 0; i < size; i += W) {
            const int64_t own = std::min<int64_t>(W, size - i);
            Floats total{};
            for (int64_t t = 0; t < net_.inputs; t++) {
                const float* recent = states_.recent + rows[t] * net_.stored() + channel + i;
                total = fused(load_part(recent, own),
                              load_part(net_.convolution + t * net_.convolved() + channel + i, own), total);
            }
            store(to + i, total / (exponential(-total) + 1.0f));
        }
        std::memset(to + (size + W - 1) / W * W, 0,
                    (DeltaNet::width_of(size) - (size + W - 1) / W * W) * sizeof(float));
    }

    // Divides a query or key by its length.
    void scale(float* head, float factor) const {
        Floats squares{};
        for (int64_t i = 0; i < net_.key_size; i += W) squares = fused(load<Floats>(head + i), load<Floats>(head + i), squares);
        factor *= 1.0f / std::sqrt(sum(squares) + 1e-6f);
        for (int64_t i = 0; i < net_.key_size; i += W) store(head + i, load<Floats>(head + i) * factor);
    }

    // to = decay * from + rate * key (value - decay * from^T key)^T; output = to^T query where it is read.
    void update(const float* from, float* to, float rate, float decay, bool read) {
        constexpr int ACROSS = 8;  // vectors of values whose sums are in registers
        const int64_t width = net_.width();
        for (int64_t at = 0; at < width; at += ACROSS * W) {
            const int own = (int)std::min<int64_t>(ACROSS, (width - at) / W);
            if (own == ACROSS)
                update_columns<ACROSS>(from + at, to + at, value_ + at, output_ + at, rate, decay, read);
            else
                for (int v = 0; v < own; v++)
                    update_columns<1>(from + at + v * W, to + at + v * W, value_ + at + v * W, output_ + at + v * W, rate,
                                      decay, read);
        }
    }

    template <int N>
    void update_columns(const float* from, float* to, const float* value, float* output, float rate, float decay,
                        bool read) const {
        const int64_t width = net_.width();
        Floats sums[N] = {};
        for (int64_t i = 0; i < net_.key_size; i++) {
            const Floats key = all(key_[i]);
            for (int v = 0; v < N; v++) {
                const Floats faded = load<Floats>(from + i * width + v * W) * decay;
                store(to + i * width + v * W, faded);
                sums[v] = fused(key, faded, sums[v]);
            }
        }
        Floats difference[N], found[N] = {};
        for (int v = 0; v < N; v++) difference[v] = (load<Floats>(value + v * W) - sums[v]) * rate;
        for (int64_t i = 0; i < net_.key_size; i++) {
            const Floats key = all(key_[i]), query = all(read ? query_[i] : 0.0f);
            for (int v = 0; v < N; v++) {
                const Floats now = fused(key, difference[v], load<Floats>(to + i * width + v * W));
                store(to + i * width + v * W, now);
                found[v] = fused(query, now, found[v]);
            }
        }
        for (int v = 0; v < N; v++) store(output + v * W, found[v]);
    }

    const DeltaNet& net_;
    const States& states_;
    const Steps& steps_;
    const int64_t head_;
    float *query_, *key_, *value_, *output_, *places_;
};

}  // namespace flowedge
