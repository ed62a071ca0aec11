// A decoder layer: norm, attention or a recurrence, norm, and a gated MLP or a mixture of experts.
//
// The rows between layers, and between the halves of a layer, are rounded to the format of the block's rows. So
// it makes no difference how many layers a call computes. Within a half all numbers are floats, but for the
// operands of products.
#pragma once

#include "attention.h"
#include "latent.h"
#include "mixture.h"
#include "recurrence.h"

namespace flowedge {

enum Activation : int32_t { SILU = 0, GELU_TANH = 1, GELU = 2, RELU2 = 3 };

struct Layer {
    int64_t hidden, heads, kv_heads, head_size, rotated;  // rotated: leading dimensions of a head that rotate
    int64_t window;                                       // 0 for all positions
    float scaling, softcap, epsilon, residual;            // softcap 0: none
    int32_t activation, format;                           // format: of rows between layers
    const float *input_norm, *attention_norm, *mlp_norm, *output_norm;  // null where the family has none
    const float *query_norm, *key_norm;                                 // [head_size] or null
    const float* sinks;                                                 // as of Heads
    Linear qkv[3], gate_up[2], output, down;  // fused linear layers leave the later places of a list empty
    int64_t intermediate;
    const Mixture* mixture;    // null where the layer has an MLP
    const LinearRecurrence* recurrence;  // null where the layer has attention, which the fields of heads describe
    int64_t gates;  // numbers of the output's gates, which follow the queries of each head; 0 for none

    const ShortConvolution* convolution;  // null likewise
    int32_t ungated;  // whether an MLP's values, of gate_up[0] or of experts' ups, are activated, and no gate multiplies them

    const Latent* latent;  // null where key heads have keys and values of their own; qkv then has queries and the key

    // A layer has attention or what stands in its place, or an MLP, or both.
    bool mixes() const { return output.weight; }
    bool has_mlp() const { return down.weight; }

    const float* value_norm;  // ones [head_size] where values are normed, or null
    int32_t keys_as_values;   // whether values are what keys are made of
    int32_t shares_keys;      // whether the caches are those of an earlier layer, which has the keys and values
    int32_t rounds_keys;      // whether keys and values are rounded to the format of rows before they are cached
    float factor;             // of the rows that leave the layer; 0: none
    // Of a layer that has both an MLP and a mixture: norms behind the MLP, before and behind the experts.
    const float *behind_mlp_norm, *experts_norm, *behind_experts_norm;
    Linear given_gate, given_output;  // what adds the rows that the layer is given; null without such rows
    const float* given_norm;
    int64_t given;  // numbers of such a row

    int64_t mixed() const {  // numbers of a row's products before the attention
        if (convolution) return convolution->in.out;
        if (recurrence) return recurrence->projected();
        if (latent) return queries_at() + heads * head_size;
        return gates + all_heads() * head_size;
    }

    // Where the queries that attention reads lie among them. In latent attention, the projections of rows come first,
    // and then what a head's query, and later its value, is.
    int64_t queries_at() const {
        return latent ? values_at() + heads * std::max(latent->query(), latent->value) : gates;
    }

    int64_t values_at() const { return qkv[0].out + qkv[1].out; }  // of latent attention

    int64_t all_heads() const { return heads + (shares_keys ? 0 : 2 * kv_heads); }  // of queries, keys and values
};

// Consecutive rows of a session.
struct SessionRows {
    int64_t rows;
    int64_t slot;         // the first row's
    Paths paths;          // of these rows
    const Cache* caches;  // the session's, of each layer
    const States* states;  // of each layer; null in a block without recurrent layers
    Steps steps;           // of these rows in recurrent layers
};

struct Run {
    int64_t rows;                               // of all sessions
    void* hidden;                               // [rows, hidden] in the order of the sessions, overwritten
    const SessionRows* sessions;                // [count]
    int64_t count;                              // of sessions
    const float *const *cosines, *const *sines; // of each layer, [positions, rotated]
    const void* given;     // [rows, given_stride]: what layers are given, of each layer in order; may be null
    int64_t given_stride;
    void* const* kept;     // of each layer, [rows, 2 * kv_heads * head_size] for its keys and values, or null

    int64_t most_rows() const {  // of a session
        int64_t most = 0;
        for (int64_t i = 0; i < count; i++) most = std::max(most, sessions[i].rows);
        return most;
    }

    int64_t most_places() const {  // of states, of a session
        int64_t most = 0;
        for (int64_t i = 0; i < count; i++) most = std::max(most, sessions[i].steps.places);
        return most;
    }
};

// Root mean square normalisation; `to` may be `from`. A sum of squares is added up in lanes, then in a tree.
inline void normalise(const float* from, const float* weight, int64_t size, float epsilon, float* to) {
    Floats squares{};
    int64_t i = 0;
    for (; i + W <= size; i += W) squares = fused(load<Floats>(from + i), load<Floats>(from + i), squares);
    float total = sum(squares);
    for (; i < size; i++) total += from[i] * from[i];
    const float factor = 1.0f / std::sqrt(total / (float)size + epsilon);
    for (i = 0; i + W <= size; i += W) store(to + i, load<Floats>(from + i) * factor * load<Floats>(weight + i));
    for (; i < size; i++) to[i] = from[i] * factor * weight[i];
}

inline Floats activated(int32_t activation, Floats value) {
    switch (activation) {
        case SILU: return value / (exponential(-value) + 1.0f);
        case GELU_TANH: {
            const Floats inner = fused(value * value * value, all(0.044715f), value) * 0.7978845608028654f;
            return value * 0.5f * (hyperbolic_tangent(inner) + 1.0f);
        }
        case RELU2: {
            const Floats positive = value > 0.0f ? value : Floats{};
            return value == value ? positive * positive : value;
        }
        default: {
            Floats result;
            for (int i = 0; i < W; i++) result[i] = 0.5f * value[i] * (1.0f + std::erf(value[i] * 0.70710678f));
            return result;
        }
    }
}

// What multiplies the values of an MLP: activation(gate). With a limit above 0, gates are limited from above and values
// on both sides, and it is gate * logistic(slope * gate), of values + 1. NaN stays NaN.
struct Gate {
    int32_t activation;
    float limit, slope;

    Floats multiply(Floats gate, Floats value) const {
        if (limit <= 0) return activated(activation, gate) * value;
        const Floats most = all(limit);
        gate = gate > most ? most : gate;
        value = value > most ? most : value < -most ? -most : value;
        return gate / (exponential(gate * -slope) + 1.0f) * (value + 1.0f);
    }
};

// `gates` are replaced by their products with `size` values. All elements are computed alike, also those at the end.
inline void gate(const Gate& gate, float* gates, const float* values, int64_t size) {
    int64_t i = 0;
    for (; i + W <= size; i += W)
        store(gates + i, gate.multiply(load<Floats>(gates + i), load<Floats>(values + i)));
    if (i < size) {
        float first[W] = {}, second[W] = {};
        std::memcpy(first, gates + i, (size - i) * sizeof(float));
        std::memcpy(second, values + i, (size - i) * sizeof(float));
        store(first, gate.multiply(load<Floats>(first), load<Floats>(second)));
        std::memcpy(gates + i, first, (size - i) * sizeof(float));
    }
}

// values = activation(values), likewise.
inline void activate(int32_t activation, float* values, int64_t size) {
    for (int64_t i = 0; i < size; i += W) {
        const int64_t own = std::min<int64_t>(W, size - i);
        const Floats found = activated(activation, load_part(values + i, own));
        std::memcpy(values + i, &found, own * sizeof(float));
    }
}

inline void rotate(float* head, const float* cosines, const float* sines, int64_t rotated) {
    const int64_t half = rotated / 2;
    for (int64_t i = 0; i < half; i++) {
        const float low = head[i], high = head[i + half];
        head[i] = low * cosines[i] - high * sines[i];
        head[i + half] = high * cosines[i + half] + low * sines[i + half];
    }
}

// Memory for the rows of a forward, that all members of a team use.
class Room {
  public:
    float *hidden, *wide;  // [rows, hidden]; [rows, the widest product]
    float* normed;         // [members, hidden]
    float* attention;      // [members, ...]
    float *routed, *by_expert;  // [rows, routed_stride] and [entries, entry_stride] of mixtures
    float* beside;              // [rows, hidden]: the results of MLPs beside mixtures
    Operand operand, of_shared;  // of_shared: of the shared expert of a mixture
    Routing routing;
    int64_t wide_stride, attention_floats, attention_rows, routed_stride, entry_stride;

    // The memory for layers [first, stop). Those with attention are alike, and so are those without.
    static Room& of(const Layer* const* layers, int64_t first, int64_t stop, const Run& run, int members) {
        static thread_local Room room;
        const Layer& layer = *layers[first];
        const int64_t rows = run.rows;
        room.wide_stride = layer.hidden;
        room.routed_stride = room.entry_stride = room.attention_floats = 0;
        room.attention_rows = run.most_rows();
        int64_t operand = layer.hidden, shared = 0, entries = 0, beside = 0, of_heads = 0;
        for (int64_t i = first; i < stop; i++) {
            const Mixture* mixture = layers[i]->mixture;
            const int64_t mixed = layers[i]->mixed();
            operand = std::max(operand, layers[i]->output.in);
            room.wide_stride = std::max(room.wide_stride, mixed);
            room.attention_floats = std::max(room.attention_floats, mixing_floats(*layers[i], run));
            room.wide_stride = std::max({room.wide_stride, 2 * layers[i]->intermediate, mixture ? mixture->all() : 0});
            room.wide_stride = std::max(room.wide_stride, 2 * layers[i]->given);
            operand = std::max({operand, layers[i]->intermediate, layers[i]->given});
            if (const Latent* latent = layers[i]->latent) {
                operand = std::max(operand, latent->queries.weight ? latent->queries.in : 0);
                of_heads = std::max(of_heads, latent->operand_floats(rows));
            }
            if (!mixture) continue;
            if (layers[i]->down.weight) beside = rows * layer.hidden;
            const int64_t from = mixture->experts[1].in, to = mixture->experts[2].in;
            const Linear* last = mixture->experts + 3 * (mixture->all() - 1);
            room.routed_stride = std::max({room.routed_stride, from, last[1].in});
            const int64_t inner = std::max(mixture->experts[1].out, last[1].out);
            room.entry_stride = std::max({room.entry_stride, 2 * inner, layer.hidden, to, last[2].in});
            if (mixture->shares()) shared = std::max({shared, last[1].in, last[2].in});
            operand = std::max({operand, from, to});
            entries = std::max(entries, rows * mixture->of_row());
        }
        const int64_t groups = operand / 16 + 1, most = std::max(rows, entries);
        const int64_t values = std::max(Operand::floats(most, operand), of_heads), shared_groups = shared / 16 + 1;
        const int64_t shared_values = shared ? Operand::floats(rows, shared) : 0;
        const int64_t floats = rows * (layer.hidden + room.wide_stride + room.routed_stride) + most * 2 * groups + values +
                               rows * 2 * shared_groups + shared_values + beside +
                               entries * room.entry_stride + members * (layer.hidden + room.attention_floats);
        const size_t bytes = floats * sizeof(float) + 14 * 64;
        if (room.memory_.size() < bytes) room.memory_ = std::vector<char>(bytes);
        char* next = room.memory_.data();
        auto take = [&](int64_t count) {
            next += -(uintptr_t)next % 64;
            float* own = (float*)next;
            next += count * sizeof(float);
            return own;
        };
        room.hidden = take(rows * layer.hidden);
        room.wide = take(rows * room.wide_stride);
        room.normed = take(members * layer.hidden);
        room.attention = take(members * room.attention_floats);
        room.routed = take(rows * room.routed_stride);
        room.by_expert = take(entries * room.entry_stride);
        room.beside = take(beside);
        room.operand.values = (int8_t*)take(values);
        room.operand.scales = take(most * groups);
        room.operand.sums = (int32_t*)take(most * groups);
        room.of_shared.values = (int8_t*)take(shared_values);
        room.of_shared.scales = take(rows * shared_groups);
        room.of_shared.sums = (int32_t*)take(rows * shared_groups);
        return room;
    }

  private:
    // The floats of a member for the attention of a layer, or for its recurrence.
    static int64_t mixing_floats(const Layer& layer, const Run& run) {
        if (layer.recurrence) return RecurrentHead::floats(*layer.recurrence, run.most_places());
        if (layer.convolution || !layer.mixes()) return 0;
        const Heads heads{layer.kv_heads, layer.heads / layer.kv_heads, layer.head_size, 0, 0, 0};
        return std::max(AttentionRoom::floats(run.most_rows(), heads), 2 * layer.gates);
    }

    std::vector<char> memory_;
};

// One team member's part in the computation of the layer `index`.
class LayerForward {
  public:
    LayerForward(const Layer& layer, int64_t index, const Run& run, Room& room, const Team& team)
        : layer_(layer), index_(index), run_(run), room_(room), team_(team), own_(team.share(run.rows)) {}

    void compute() {
        if (!layer_.mixes())
            ;  // an MLP alone
        else if (layer_.recurrence)
            recurrent_half(*layer_.recurrence);
        else if (layer_.convolution)
            convolution_half(*layer_.convolution);
        else if (layer_.latent)
            latent_half(*layer_.latent);
        else
            attention_half();
        if (layer_.mixture)
            mixture_half(*layer_.mixture);
        else if (layer_.has_mlp())
            mlp_half();
        if (layer_.given) given_half();
    }

  private:
    void attention_half() {
        products(layer_.input_norm, layer_.qkv, 3);
        team_.meet();
        if (layer_.gates) {
            for (int64_t m = own_.start; m < own_.stop; m++) divide_gates(wide(m));
            team_.meet();
        }
        rotate_and_cache();
        team_.meet();
        attend_heads();
        team_.meet();
        for (int64_t m = own_.start; m < own_.stop; m++) {
            float* attended = queries(m);
            for (int64_t i = 0; i < layer_.gates; i += W) close_gates(wide(m) + i, attended + i, layer_.gates - i);
            write_operand(layer_.output, attended, m, room_.operand);
        }
        add_output();
    }

    void latent_half(const Latent& latent) {
        const int64_t rows = run_.rows, heads = latent.heads, values_at = layer_.values_at();
        products(layer_.input_norm, layer_.qkv, 2);
        team_.meet();
        if (latent.queries.weight) {
            for (int64_t m = own_.start; m < own_.stop; m++) {
                normalise(wide(m), latent.query_norm, latent.queries.in, latent.epsilon, wide(m));
                write_operand(latent.queries, wide(m), m, room_.operand);
            }
            team_.meet();
            multiply(room_.operand.rows(rows, latent.queries), latent.queries, wide(0) + values_at, room_.wide_stride, team_);
            team_.meet();
        }
        each_unit(heads + 1, [&](const SessionRows& session, int64_t m, int64_t row, int64_t head) {
            rotate_and_cache(latent, session, m, row, head);
        });
        team_.meet();
        latent.multiply(latent.keys, room_.operand, rows, queries(0), latent.vector(), room_.wide_stride, team_);
        team_.meet();
        attend_heads();
        team_.meet();
        each_unit(heads, [&](const SessionRows&, int64_t, int64_t row, int64_t head) {
            write_operand(latent.values[head], queries(row) + head * latent.vector(), head * rows + row, room_.operand);
        });
        team_.meet();
        latent.multiply(latent.values, room_.operand, rows, wide(0) + values_at, latent.value, room_.wide_stride, team_);
        team_.meet();
        for (int64_t m = own_.start; m < own_.stop; m++) write_operand(layer_.output, wide(m) + values_at, m, room_.operand);
        add_output();
    }

    // One head's query, the part that does not rotate as an operand, or the key behind the last head, of a row, which is
    // the row `m` of its session.
    void rotate_and_cache(const Latent& latent, const SessionRows& session, int64_t m, int64_t row, int64_t head) {
        const int64_t size = latent.vector(), at = session.paths.positions[m] * layer_.rotated;
        const float *cosines = run_.cosines[index_] + at, *sines = run_.sines[index_] + at;
        if (head < latent.heads) {
            const float* query = wide(row) + (latent.queries.weight ? layer_.values_at() : 0) + head * latent.query();
            float* rotated = queries(row) + head * size + latent.rank;
            write_operand(latent.keys[head], query, head * run_.rows + row, room_.operand);
            latent.take_rotated(query + latent.plain, rotated);
            rotate(rotated, cosines, sines, latent.rotated);
            return;
        }
        const float* projected = wide(row) + layer_.qkv[0].out;
        float* key = room_.attention + team_.member * room_.attention_floats;
        normalise(projected, latent.key_norm, latent.rank, latent.epsilon, key);
        latent.take_rotated(projected + latent.rank, key + latent.rank);
        rotate(key + latent.rank, cosines, sines, latent.rotated);
        const Cache& cache = session.caches[index_];
        write_vector(cache, cache.keys, cache.key_scales, size, 0, session.slot + m, key);
        write_vector(cache, cache.values, cache.value_scales, size, 0, session.slot + m, key);
    }

    // The product of the output, which the operand has, is added to the hidden rows.
    void add_output() {
        team_.meet();
        multiply(room_.operand.rows(run_.rows, layer_.output), layer_.output, room_.wide, room_.wide_stride, team_);
        team_.meet();
        add_to_hidden(layer_.attention_norm, 0.0f);
    }

    // The gates that follow the queries of each head go before all queries.
    void divide_gates(float* projected) const {
        const int64_t size = layer_.head_size;
        float* both = room_.attention + team_.member * room_.attention_floats;
        std::memcpy(both, projected, 2 * layer_.gates * sizeof(float));
        for (int64_t head = 0; head < layer_.heads; head++) {
            std::memcpy(projected + head * size, both + (2 * head + 1) * size, size * sizeof(float));
            std::memcpy(projected + layer_.gates + head * size, both + 2 * head * size, size * sizeof(float));
        }
    }

    // Multiplies up to W numbers by their gates.
    static void close_gates(const float* gates, float* values, int64_t count) {
        float first[W] = {}, second[W] = {};
        const int64_t own = std::min<int64_t>(W, count);
        std::memcpy(first, gates, own * sizeof(float));
        std::memcpy(second, values, own * sizeof(float));
        store(second, load<Floats>(second) / (exponential(-load<Floats>(first)) + 1.0f));
        std::memcpy(values, second, own * sizeof(float));
    }

    // Calls write(products, recent) for each own row, where its recent row of `values` numbers lies.
    template <class Write>
    void write_own(int64_t values, const Write& write) {
        int64_t first = 0;  // row of the session
        for (int64_t i = 0; i < run_.count; first += run_.sessions[i++].rows) {
            const SessionRows& session = run_.sessions[i];
            float* recent = session.states[index_].recent + session.steps.first * values;
            const int64_t stop = std::min(own_.stop, first + session.rows);
            for (int64_t m = std::max(own_.start, first); m < stop; m++) write(wide(m), recent + (m - first) * values);
        }
    }

    void convolution_half(const ShortConvolution& convolution) {
        const int64_t width = layer_.hidden;
        products(layer_.input_norm, &convolution.in, 1);
        team_.meet();
        write_own(width, [&](const float* projected, float* recent) {
            for (int64_t i = 0; i < width; i++) recent[i] = projected[i] * projected[2 * width + i];
        });
        team_.meet();
        int64_t first = 0;
        for (int64_t i = 0; i < run_.count; first += run_.sessions[i++].rows) {
            const Steps& steps = run_.sessions[i].steps;
            for (int64_t step = 0; step < steps.count; step++) {
                const int64_t m = first + steps.outputs[step];
                if (steps.outputs[step] < 0 || m < own_.start || m >= own_.stop) continue;
                convolve_gated(convolution, run_.sessions[i].states[index_].recent, steps.rows + step * convolution.inputs,
                               width, wide(m) + width, wide(m));
            }
        }
        for (int64_t m = own_.start; m < own_.stop; m++) write_operand(layer_.output, wide(m), m, room_.operand);
        add_output();
    }

    void recurrent_half(const LinearRecurrence& net) {
        products(layer_.input_norm, net.in, 4);
        team_.meet();
        write_own(net.stored(), [&](const float* projected, float* recent) { write_recent(net, projected, recent); });
        team_.meet();
        update_states(net);
        team_.meet();
        const int64_t group = net.values() / net.key_heads;
        for (int64_t m = own_.start; m < own_.stop; m++) {
            if (!net.corrects)
                for (int64_t at = 0; at < net.values(); at += group)
                    normalise(wide(m) + at, net.norm + at, group, layer_.epsilon, wide(m) + at);
            write_operand(layer_.output, wide(m), m, room_.operand);
        }
        add_output();
    }

  public:
    // What the rows read of their states, gated, takes the first places of their products, in `wide`.
    void update_states(const LinearRecurrence& net) {
        int64_t total = 0;
        for (int64_t i = 0; i < run_.count; i++) total += net.value_heads * run_.sessions[i].steps.count;
        const Range own = team_.share(total);  // a member computes the heads whose steps begin in its share
        float* memory = room_.attention + team_.member * room_.attention_floats;
        int64_t first = 0, before = 0;
        for (int64_t i = 0; i < run_.count; first += run_.sessions[i++].rows) {
            const SessionRows& session = run_.sessions[i];
            for (int64_t head = 0; head < net.value_heads; head++, before += session.steps.count) {
                if (before < own.start || before >= own.stop) continue;
                RecurrentHead(net, session.states[index_], session.steps, head, memory).run([&](int64_t row, float* values) {
                    float* projected = wide(first + row);
                    float* gates = projected + net.gates_at() + head * net.value_size;
                    if (net.corrects) normalise(values, net.norm, net.value_size, layer_.epsilon, values);
                    gate({SILU}, gates, values, net.value_size);
                    std::memmove(projected + head * net.value_size, gates, net.value_size * sizeof(float));
                });
            }
        }
    }

  private:

    // The factor of the rows that leave the MLP or the mixture, which is the last part of most layers.
    float last_factor() const { return layer_.given ? 0.0f : layer_.factor; }

    void mlp_half() {
        compute_mlp();
        add_to_hidden(layer_.output_norm, last_factor());
    }

    // The results of the MLP in `wide`.
    void compute_mlp() {
        const int64_t size = layer_.intermediate;
        products(layer_.mlp_norm, layer_.gate_up, 2);
        team_.meet();
        for (int64_t m = own_.start; m < own_.stop; m++) {
            if (layer_.ungated)
                activate(layer_.activation, wide(m), size);
            else
                gate({layer_.activation}, wide(m), wide(m) + size, size);
            write_operand(layer_.down, wide(m), m, room_.operand);
        }
        team_.meet();
        multiply(room_.operand.rows(run_.rows, layer_.down), layer_.down, room_.wide, room_.wide_stride, team_);
        team_.meet();
    }

    // Adds what a gate of the rows lets through of the rows that the layer is given.
    void given_half() {
        const int64_t size = layer_.given;
        products(nullptr, &layer_.given_gate, 1);
        team_.meet();
        for (int64_t m = own_.start; m < own_.stop; m++) {
            float* given = wide(m) + size;
            read_floats((Format)layer_.format, run_.given, m * run_.given_stride + index_ * size, size, given);
            gate({layer_.activation}, wide(m), given, size);
            write_operand(layer_.given_output, wide(m), m, room_.operand);
        }
        team_.meet();
        multiply(room_.operand.rows(run_.rows, layer_.given_output), layer_.given_output, room_.wide, room_.wide_stride,
                 team_);
        team_.meet();
        add_to_hidden(layer_.given_norm, layer_.factor);
    }

    void mixture_half(const Mixture& mixture) {
        const bool beside_mlp = layer_.down.weight;
        if (beside_mlp) {
            compute_mlp();
            for (int64_t m = own_.start; m < own_.stop; m++)
                normalise(wide(m), layer_.behind_mlp_norm, layer_.hidden, layer_.epsilon, room_.beside + m * layer_.hidden);
        }
        compute_mixture(mixture, beside_mlp ? layer_.experts_norm : layer_.mlp_norm);
        for (int64_t m = own_.start; beside_mlp && m < own_.stop; m++) {
            normalise(wide(m), layer_.behind_experts_norm, layer_.hidden, layer_.epsilon, wide(m));
            for (int64_t i = 0; i < layer_.hidden; i++) wide(m)[i] += room_.beside[m * layer_.hidden + i];
        }
        add_to_hidden(layer_.output_norm, last_factor());
    }

    // The weighted sums of the rows' experts in `wide`; `norm` is of the rows that experts compute.
    void compute_mixture(const Mixture& mixture, const float* norm) {
        for (int64_t m = own_.start; m < own_.stop; m++) {
            float *hidden = room_.hidden + m * layer_.hidden, *routed = room_.routed + m * room_.routed_stride;
            read_floats((Format)layer_.format, run_.hidden, m * layer_.hidden, layer_.hidden, hidden);
            normalise(hidden, norm, layer_.hidden, layer_.epsilon, routed);
            std::memset(routed + layer_.hidden, 0, (room_.routed_stride - layer_.hidden) * sizeof(float));
            float* scored = mixture.router_norm ? room_.normed + team_.member * layer_.hidden : routed;
            if (mixture.router_norm) normalise(hidden, mixture.router_norm, layer_.hidden, layer_.epsilon, scored);
            write_operand(mixture.router, scored, m, room_.operand);
        }
        if (team_.member == 0) room_.routing.begin(mixture, run_.rows);
        team_.meet();
        multiply(room_.operand.rows(run_.rows, mixture.router), mixture.router, room_.wide, room_.wide_stride, team_);
        if (mixture.shared_gate.weight)
            multiply(room_.operand.rows(run_.rows, mixture.shared_gate), mixture.shared_gate, room_.wide + mixture.count,
                     room_.wide_stride, team_);
        team_.meet();
        for (int64_t m = own_.start; m < own_.stop; m++) {
            if (!mixture.unrounded) round_to((Format)layer_.format, wide(m), mixture.count);
            room_.routing.choose(mixture, m, wide(m), (Format)layer_.format);
        }
        team_.meet();
        if (team_.member == 0) room_.routing.sort(mixture);
        team_.meet();
        compute_experts(mixture);
        for (int64_t m = own_.start; m < own_.stop; m++)
            room_.routing.add_up(m, room_.by_expert, room_.entry_stride, layer_.hidden, wide(m));
    }

    // The results of all entries in `by_expert`.
    void compute_experts(const Mixture& mixture) {
        const Routing& routing = room_.routing;
        const Linear& first = mixture.experts[1];
        for (int64_t m = own_.start; m < own_.stop; m++) {
            const int64_t* places = routing.places(m);
            const float* routed = room_.routed + m * room_.routed_stride;
            write_operand(first, routed, places[0], room_.operand);
            for (int64_t j = 1; j < mixture.chosen; j++) copy_operand(first, places[0], places[j], room_.operand);
            if (mixture.shares())
                write_operand(mixture.experts[3 * mixture.count + 1], routed, places[mixture.chosen] - routing.shared_from,
                              room_.of_shared);
        }
        team_.meet();
        routing.multiply(mixture, layer_.ungated, 2, room_.operand, room_.of_shared, room_.by_expert, room_.entry_stride, team_);
        team_.meet();
        const Range own = team_.share(routing.entries());
        for (int64_t e = own.start; e < own.stop; e++) {
            float* values = room_.by_expert + e * room_.entry_stride;
            const Linear* linears = mixture.experts + routing.expert_of[e] * 3;
            const Linear& down = linears[2];
            const int64_t inner = linears[1].out;
            if (layer_.ungated)
                activate(layer_.activation, values, inner);
            else
                gate({layer_.activation, mixture.limit, mixture.slope}, values, values + inner, inner);
            std::memset(values + inner, 0, (down.in - inner) * sizeof(float));
            if (e < routing.shared_from)
                write_operand(down, values, e, room_.operand);
            else
                write_operand(down, values, e - routing.shared_from, room_.of_shared);
        }
        team_.meet();
        routing.multiply(mixture, 2, 3, room_.operand, room_.of_shared, room_.by_expert, room_.entry_stride, team_);
        team_.meet();
    }

    float* wide(int64_t row) const { return room_.wide + row * room_.wide_stride; }

    float* queries(int64_t row) const { return wide(row) + layer_.queries_at(); }

    void read_and_normalise(const float* weight, const Linear& linear) {
        float* normed = room_.normed + team_.member * layer_.hidden;
        for (int64_t m = own_.start; m < own_.stop; m++) {
            float* hidden = room_.hidden + m * layer_.hidden;
            read_floats((Format)layer_.format, run_.hidden, m * layer_.hidden, layer_.hidden, hidden);
            if (weight) normalise(hidden, weight, layer_.hidden, layer_.epsilon, normed);
            write_operand(linear, weight ? normed : hidden, m, room_.operand);
        }
    }

    // The products of the rows, normalised, with linear layers, beside each other in `wide`.
    void products(const float* norm, const Linear* linears, int count) {
        float* output = room_.wide;
        for (int i = 0; i < count && linears[i].weight; output += linears[i++].out) {
            if (i == 0 || !rounds_alike(linears[i - 1], linears[i])) {
                if (i > 0) team_.meet();  // others may still multiply the operand
                read_and_normalise(norm, linears[i]);
                team_.meet();
            }
            multiply(room_.operand.rows(run_.rows, linears[i]), linears[i], output, room_.wide_stride, team_);
        }
    }

    // Calls work(session, row of the session, row, unit) for this member's share of `count` units of each row.
    template <class Work>
    void each_unit(int64_t count, const Work& work) {
        const Range own = team_.share(run_.rows * count);
        int64_t first = 0;  // row of the session
        for (int64_t i = 0; i < run_.count; first += run_.sessions[i++].rows) {
            const SessionRows& session = run_.sessions[i];
            const int64_t stop = std::min(own.stop, (first + session.rows) * count);
            for (int64_t unit = std::max(own.start, first * count); unit < stop; unit++)
                work(session, unit / count - first, unit / count, unit % count);
        }
    }

    void rotate_and_cache() {
        each_unit(layer_.all_heads(), [&](const SessionRows& session, int64_t m, int64_t row, int64_t head) {
            rotate_and_cache(session, row - m, m, head, queries(row));
        });
    }

    // One head of a session's row `m`, whose queries, keys and values are `projected`; `first` is the row of the session.
    void rotate_and_cache(const SessionRows& session, int64_t first, int64_t m, int64_t index, float* projected) {
        const int64_t size = layer_.head_size, heads = layer_.heads, kv_heads = layer_.kv_heads;
        const Cache& cache = session.caches[index_];
        float* head = projected + index * size;
        const int64_t slot = session.slot + m;
        const bool is_key = index >= heads && index < heads + kv_heads;
        if (index >= heads + kv_heads || (is_key && layer_.keys_as_values)) {
            if (!is_key && layer_.keys_as_values) return;  // whoever has the key writes it
            float* value = is_key ? head + kv_heads * size : head;
            if (is_key) std::memcpy(value, head, size * sizeof(float));
            if (layer_.value_norm) normalise(value, layer_.value_norm, size, layer_.epsilon, value);
            const int64_t own = (value - projected) / size - heads - kv_heads;
            keep(first + m, kv_heads + own, value);
            write_vector(cache, cache.values, cache.value_scales, size, own, slot, value);
            if (!is_key) return;
        }
        const float* norm = index < heads ? layer_.query_norm : layer_.key_norm;
        if (norm) normalise(head, norm, size, layer_.epsilon, head);
        const int64_t at = session.paths.positions[m] * layer_.rotated;
        rotate(head, run_.cosines[index_] + at, run_.sines[index_] + at, layer_.rotated);
        if (!is_key) return;
        keep(first + m, index - heads, head);
        write_vector(cache, cache.keys, cache.key_scales, size, index - heads, slot, head);
    }

    // Rounds a key or value that other layers read, and copies it where it is kept for other blocks.
    void keep(int64_t row, int64_t vector, float* head) const {
        if (!layer_.rounds_keys) return;
        const int64_t size = layer_.head_size;
        round_to((Format)layer_.format, head, size);
        void* kept = run_.kept ? run_.kept[index_] : nullptr;
        if (kept) write_floats((Format)layer_.format, kept, (row * 2 * layer_.kv_heads + vector) * size, size, head);
    }

    // The queries in `wide` are replaced by the attention's output.
    void attend_heads() {
        const Heads heads{layer_.kv_heads, layer_.heads / layer_.kv_heads, layer_.head_size,
                          layer_.scaling,  layer_.softcap,                 layer_.window,     layer_.sinks};
        const AttentionRoom room =
            AttentionRoom::of(room_.attention + team_.member * room_.attention_floats, room_.attention_rows, heads);
        // The many queries of the only key of latent attention are divided, so that one row has several members.
        const int64_t parts = layer_.latent ? std::min<int64_t>(team_.members, heads.group) : 1;
        const int64_t divided = heads.kv_heads * parts;
        const int64_t divisions = (team_.members + divided - 1) / divided;  // of a session's rows
        const int64_t units = divided * divisions;                          // of a session
        int64_t total = 0;
        for (int64_t i = 0; i < run_.count; i++) total += units * unit_cost(run_.sessions[i]);
        const Range own = team_.share(total);  // a member computes the units whose cost begins in its share
        int64_t first = 0, before = 0;         // row of the session, and the cost of all units before
        for (int64_t i = 0; i < run_.count; first += run_.sessions[i++].rows) {
            const SessionRows& session = run_.sessions[i];
            const int64_t cost = unit_cost(session);
            for (int64_t unit = 0; unit < units; unit++, before += cost) {
                if (before < own.start || before >= own.stop) continue;
                const int64_t part = unit % divisions, which = unit / divisions % parts;
                const int64_t start = session.rows * part / divisions, stop = session.rows * (part + 1) / divisions;
                const int64_t query = heads.group * which / parts;
                Heads own_heads = heads;
                own_heads.group = heads.group * (which + 1) / parts - query;
                float* own_queries = queries(first) + query * heads.size;
                if (start < stop)
                    attend(own_queries, room_.wide_stride, own_queries, room_.wide_stride, unit / divisions / parts, start,
                           stop - start, session.caches[index_], session.paths, own_heads, room);
            }
        }
    }

    // About the work of one key head's attention, to share sessions of different length fairly.
    int64_t unit_cost(const SessionRows& session) const {
        const int64_t keys = session.paths.positions[session.rows - 1] + 1;
        return (1 + session.rows) * (layer_.window ? std::min(keys, layer_.window + session.rows) : keys);
    }

    void add_to_hidden(const float* norm, float factor) {
        for (int64_t m = own_.start; m < own_.stop; m++) {
            float *hidden = room_.hidden + m * layer_.hidden, *added = wide(m);
            if (norm) normalise(added, norm, layer_.hidden, layer_.epsilon, added);
            for (int64_t i = 0; i < layer_.hidden; i++) hidden[i] += added[i] * layer_.residual;
            for (int64_t i = 0; factor && i < layer_.hidden; i++) hidden[i] *= factor;
            write_floats((Format)layer_.format, run_.hidden, m * layer_.hidden, layer_.hidden, hidden);
        }
    }

    const Layer& layer_;
    const int64_t index_;
    const Run& run_;
    Room& room_;
    const Team team_;
    const Range own_;
};

}  // namespace flowedge
