// Computes products and a layer with numbers that depend on nothing, and prints the results.
#include <cstdio>

#include "flowedge.cpp"

static uint32_t state = 1;

static float number() {
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state / 2147483648.0f;
}

static std::vector<float> numbers(size_t count, float scale = 1.0f) {
    std::vector<float> made(count);
    for (float& each : made) each = number() * scale;
    return made;
}

static std::vector<uint16_t> halves(size_t count, float scale, float middle, Format format = BFLOAT16) {
    std::vector<float> values = numbers(count, scale);
    for (float& each : values) each += middle;
    std::vector<uint16_t> made(count);
    write_floats(format, made.data(), 0, count, values.data());
    return made;
}

static std::vector<uint8_t> bytes(size_t count) {
    std::vector<uint8_t> made(count);
    for (uint8_t& each : made) each = (uint8_t)(128.0f + number() * 127.0f);
    return made;
}

// A linear layer and its memory.
struct Made {
    std::vector<float> floats, bias;
    std::vector<uint16_t> bits, scales;
    std::vector<uint8_t> levels;
    Linear linear;

    Made(Format format, int64_t out, int64_t in, int32_t group, bool zeros = false, bool half = false) {
        const int64_t outputs = (out + LANES - 1) / LANES * LANES;
        bias = numbers(out);
        linear = {format, group, half, zeros, out, in, nullptr, nullptr, bias.data()};
        if (format == FLOAT32) {
            floats = numbers(out * in, 0.1f);
            linear.weight = floats.data();
        } else if (format == BFLOAT16) {
            bits = halves(out * in, 0.1f, 0.0f);
            linear.weight = bits.data();
        } else {
            const int64_t bits = format == INT8 ? 8 : format == INT5 ? 5 : format == INT6 ? 6 : 4;
            levels = bytes(outputs * in / 8 * bits);
            scales = halves(outputs * (in / group) * (zeros ? 2 : 1), 0.001f, 0.002f, half ? FLOAT16 : BFLOAT16);
            linear.weight = levels.data();
            linear.scales = scales.data();
        }
    }
};

static void print(const char* name, const float* values, size_t count) {
    std::printf("%s", name);
    for (size_t i = 0; i < count; i++) std::printf(" %.9g", values[i]);
    std::printf("\n");
}

static void products(const char* name, Format format, int32_t group, bool zeros = false, bool half = false) {
    const int64_t out = 37, in = 256, rows = 7;
    Made made(format, out, in, group, zeros, half);
    const std::vector<float> inputs = numbers(rows * in);
    std::vector<float> together(rows * out), alone(out);
    flowedge_linear(&made.linear, FLOAT32, inputs.data(), rows, together.data(), 2);
    bool same = true;
    for (int64_t m = 0; m < rows; m++) {
        flowedge_linear(&made.linear, FLOAT32, inputs.data() + m * in, 1, alone.data(), 1);
        same = same && !std::memcmp(alone.data(), together.data() + m * out, out * sizeof(float));
    }
    print(name, together.data(), together.size());
    std::printf("alone %d\n", same);
}

enum Kind { PLAIN, MIXTURE, GATED, DELTA_NET, MAMBA2, CONVOLUTION, UNGATED, BESIDE, KEYS_AS_VALUES, SHARED, LATENT };

static void layer(const char* name, Format weights, Format rows_format, Format cached, Kind kind = PLAIN) {
    const int64_t hidden = 64, heads = 4, kv_heads = 2, size = 20, rows = 9, capacity = 160, first = 100;
    const bool zeros = weights == INT4;
    Made qkv(weights, (heads + 2 * kv_heads) * size, hidden, 32, zeros), gate_up(weights, 192, hidden, 32, zeros);
    Made down(weights, hidden, 96, 32, zeros), output(weights == INT8 || weights == INT4 ? BFLOAT16 : weights, hidden, heads * size, 32);
    const std::vector<float> norm = numbers(hidden), head_norm = numbers(size), cosines = numbers(capacity * size), sines = numbers(capacity * size);
    Layer own{};
    own.hidden = hidden, own.heads = heads, own.kv_heads = kv_heads, own.head_size = size, own.rotated = size;
    own.window = 90, own.scaling = 0.2f, own.softcap = 30.0f, own.epsilon = 1e-5f, own.residual = 0.7f;
    own.activation = GELU_TANH, own.format = rows_format;
    own.input_norm = own.attention_norm = own.mlp_norm = own.output_norm = norm.data();
    own.query_norm = own.key_norm = head_norm.data();
    own.qkv[0] = qkv.linear, own.gate_up[0] = gate_up.linear, own.output = output.linear, own.down = down.linear;
    own.intermediate = 96;
    std::vector<Made> experts;
    std::vector<Linear> linears;
    const Made router(BFLOAT16, 6, hidden, 0);
    const bool mixes = kind == MIXTURE || kind == BESIDE;
    for (int i = 0; mixes && i < 7; i++) {
        experts.emplace_back(weights, 48, hidden, 32, zeros);
        experts.emplace_back(weights, 48, hidden, 32, zeros);
        experts.emplace_back(weights, hidden, 64, 32, zeros);
    }
    for (const Made& expert : experts) linears.push_back(expert.linear);
    const Made shared_gate(BFLOAT16, 1, hidden, 0), gated(weights, (2 * heads + 2 * kv_heads) * size, hidden, 32, zeros);
    Mixture mixture{6, 2, 1, 1, 0, 0.0f, 1.0f, nullptr, router.linear, linears.data(), 0.0f, 0.0f, shared_gate.linear, 1};
    if (mixes) own.mixture = &mixture;
    if (kind == MIXTURE) own.down = Linear{};
    if (kind == BESIDE) {
        mixture.router_norm = own.behind_mlp_norm = own.experts_norm = own.behind_experts_norm = norm.data();
        mixture.scales = norm.data() + 8;
    }
    const int64_t given = 24;
    const Made one(weights, (heads + kv_heads) * size, hidden, 32, zeros), queries(weights, heads * size, hidden, 32, zeros);
    const Made given_gate(weights, given, hidden, 32, zeros), given_output(BFLOAT16, hidden, given, 0);
    const std::vector<float> given_rows = numbers(rows * given), ones(size, 1.0f);
    if (kind == KEYS_AS_VALUES) own.keys_as_values = own.rounds_keys = 1, own.qkv[0] = one.linear, own.value_norm = ones.data(), own.factor = 0.6f;
    if (kind == SHARED) {
        own.shares_keys = 1, own.qkv[0] = queries.linear, own.factor = 0.6f;
        own.given = given, own.given_gate = given_gate.linear, own.given_output = given_output.linear, own.given_norm = norm.data();
    }
    const Made values_alone(weights, 96, hidden, 32, zeros);
    if (kind == UNGATED) own.ungated = 1, own.activation = RELU2, own.gate_up[0] = values_alone.linear;
    if (kind == GATED) own.gates = heads * size, own.qkv[0] = gated.linear;
    LinearRecurrence net{2, 4, 24, 20, 4, kind == DELTA_NET, kind == DELTA_NET};
    const Made mixed(weights, net.convolved(), hidden, 32, zeros), gates(weights, net.values(), hidden, 32, zeros);
    const Made rates(BFLOAT16, 4, hidden, 0), decays(BFLOAT16, 4, hidden, 0), values_out(BFLOAT16, hidden, net.values(), 0);
    net.in[0] = mixed.linear, net.in[1] = gates.linear, net.in[2] = rates.linear, net.in[3] = decays.linear;
    const Made together(weights, net.projected(), hidden, 32, zeros);
    const std::vector<float> convolved = numbers(4 * net.convolved()), decay = numbers(4), of_values = numbers(net.values());
    net.convolution = convolved.data(), net.decay = decay.data(), net.decay_bias = decay.data(), net.norm = of_values.data();
    if (kind == MAMBA2) net.in[0] = together.linear, net.in[1] = Linear{}, net.convolution_bias = convolved.data(), net.skip = decay.data();
    const Made thrice(weights, 3 * hidden, hidden, 32, zeros), convolution_out(BFLOAT16, hidden, hidden, 0);
    const ShortConvolution convolution{3, thrice.linear, convolved.data()};
    const int64_t read = kind == CONVOLUTION ? 3 : 4;  // rows of a path
    if (kind == DELTA_NET || kind == MAMBA2) own.recurrence = &net, own.output = values_out.linear;
    if (kind == CONVOLUTION) own.convolution = &convolution, own.output = convolution_out.linear;
    Latent latent{heads, 12, 8, 10, 16};  // a key has the size of a head above
    const Made compressed(weights, 32, hidden, 32, zeros), key(weights, latent.vector(), hidden, 32, zeros);
    const Made expanded(weights, heads * latent.query(), 32, 32, zeros), latent_out(weights, hidden, heads * latent.value, 32, zeros);
    std::vector<Made> matrices;
    std::vector<Linear> of_keys, of_values_of_heads;
    for (int64_t head = 0; head < 2 * heads; head++)
        head < heads ? matrices.emplace_back(BFLOAT16, latent.rank, latent.plain, 0) : matrices.emplace_back(BFLOAT16, latent.value, latent.rank, 0);
    for (int64_t head = 0; head < heads; head++)
        of_keys.push_back(matrices[head].linear), of_values_of_heads.push_back(matrices[heads + head].linear);
    latent.queries = expanded.linear, latent.query_norm = latent.key_norm = norm.data(), latent.epsilon = 1e-6f, latent.paired = 1;
    latent.keys = of_keys.data(), latent.values = of_values_of_heads.data();
    if (kind == LATENT) {
        own.latent = &latent, own.kv_heads = 1, own.rotated = latent.rotated;
        own.qkv[0] = compressed.linear, own.qkv[1] = key.linear, own.output = latent_out.linear;
    }
    std::vector<float> held = numbers(4 * net.state()), recent = numbers((read - 1 + rows) * std::max(net.stored(), hidden));
    const int64_t vectors = kv_heads * capacity;
    const std::vector<float> cache = numbers(2 * vectors * size, 0.5f);
    std::vector<char> keys(vectors * size * 4), values(vectors * size * 4);
    std::vector<float> scales(2 * vectors, 0.01f);
    if (cached == INT8)
        for (int64_t i = 0; i < vectors * size; i++) keys[i] = (char)(cache[i] * 200), values[i] = (char)(cache[vectors * size + i] * 200);
    else
        write_floats(cached, keys.data(), 0, vectors * size, cache.data()), write_floats(cached, values.data(), 0, vectors * size, cache.data() + vectors * size);
    const Cache caches{cached, keys.data(), values.data(), scales.data(), scales.data() + vectors, capacity};
    // A tree of two branches: rows 0, 2, 4, ... and rows 1, 3, 5, ...
    std::vector<int64_t> positions(rows), linear(rows), offsets(rows), slots;
    for (int64_t m = 0; m < rows; m++) {
        positions[m] = first + m / 2, linear[m] = first, offsets[m] = (int64_t)slots.size();
        for (int64_t row = m % 2; row <= m; row += 2) slots.push_back(first + row);
    }
    const std::vector<float> inputs = numbers(rows * hidden);
    std::vector<char> rows_memory(rows * hidden * 4);
    write_floats(rows_format, rows_memory.data(), 0, rows * hidden, inputs.data());
    const Layer* layers[] = {&own};
    const float *cos[] = {cosines.data()}, *sin[] = {sines.data()};
    std::vector<int64_t> steps, sources, targets, outputs;  // one branch after the other
    for (int64_t branch = 0; branch < 2; branch++)
        for (int64_t m = branch; m < rows; m += 2) {
            for (int64_t back = read - 1; back >= 0; back--)
                steps.push_back(m - 2 * back >= branch ? read - 1 + m - 2 * back : read - 2 + (m - branch) / 2 + 1 - back);
            sources.push_back(m > branch), targets.push_back(1), outputs.push_back(m);
        }
    const States states{held.data(), recent.data()};
    const SessionRows session{rows, first, {positions.data(), linear.data(), offsets.data(), slots.data()}, &caches, &states,
                              {rows, steps.data(), sources.data(), targets.data(), outputs.data(), 1, read - 1}};
    std::vector<char> given_memory(rows * given * 4), kept(rows * 2 * kv_heads * size * 4);
    write_floats(rows_format, given_memory.data(), 0, rows * given, given_rows.data());
    void* copies[] = {kept.data()};
    const Run run{rows, rows_memory.data(), &session, 1, cos, sin, given_memory.data(), given, copies};
    flowedge_layers(layers, 0, 1, &run, 2);
    std::vector<float> found(rows * hidden);
    read_floats(rows_format, rows_memory.data(), 0, rows * hidden, found.data());
    print(name, found.data(), found.size());
}

int main() {
    products("integer-int8", INT8, 64);
    products("integer-int4", INT4, 32, true);
    products("integer-q4", INT4, 32, true, true);
    products("integer-q5", INT5, 32, true, true);
    products("integer-q6", INT6, 16, false, true);
    products("integer-q8", INT8, 32, false, true);
    products("integer-iq4", IQ4, 32, false, true);
    products("integer-mxfp4", MXFP4, 32);
    products("float32", FLOAT32, 0);
    products("bfloat16", BFLOAT16, 0);
    layer("layer-float32", FLOAT32, FLOAT32, FLOAT32);
    layer("layer-bfloat16", BFLOAT16, BFLOAT16, BFLOAT16);
    layer("layer-int8", INT8, FLOAT16, FLOAT16);
    layer("layer-int4", INT4, FLOAT32, INT8);
    layer("layer-mixture", INT4, BFLOAT16, BFLOAT16, MIXTURE);
    layer("layer-gated", INT4, BFLOAT16, BFLOAT16, GATED);
    layer("layer-delta-net", INT4, BFLOAT16, BFLOAT16, DELTA_NET);
    layer("layer-mamba2", INT4, BFLOAT16, BFLOAT16, MAMBA2);
    layer("layer-ungated", INT4, BFLOAT16, BFLOAT16, UNGATED);
    layer("layer-convolution", INT8, BFLOAT16, BFLOAT16, CONVOLUTION);
    layer("layer-beside", INT4, BFLOAT16, BFLOAT16, BESIDE);
    layer("layer-keys-as-values", INT8, BFLOAT16, INT8, KEYS_AS_VALUES);
    layer("layer-shared", INT4, BFLOAT16, BFLOAT16, SHARED);
    layer("layer-latent", INT4, BFLOAT16, BFLOAT16, LATENT);
    layer("layer-latent-int8", INT8, FLOAT32, INT8, LATENT);
}
