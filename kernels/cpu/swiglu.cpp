// swiglu.h on the CPU, and SwiGLU fused with the products before it (gemm.h).

#include "kernels/ops/swiglu.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/bf16_words.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

MOE_VECTOR_CLONES void forward_piece(const float* gates, const float* ups, int64_t count,
                                     float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = gates[i] / (1.0F + vector_exp(-gates[i])) * ups[i];
  }
}

// Writes the activation to `out` with kWritesOut. `out` must not alias the inputs.
template <bool kWritesOut>
MOE_VECTOR_CLONES void backward_piece(const float* grad_out, const float* gates, const float* ups,
                                      int64_t count, float* grad_gate, float* grad_up,
                                      [[maybe_unused]] float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const float gate = gates[i], up = ups[i], dy = grad_out[i];
    const float one_and_exp = 1.0F + vector_exp(-gate);
    const float sigmoid = 1.0F / one_and_exp;
    grad_gate[i] = dy * up * sigmoid * (1.0F + gate * (1.0F - sigmoid));
    grad_up[i] = dy * gate * sigmoid;
    if constexpr (kWritesOut) {
      out[i] = gate / one_and_exp * up;
    }
  }
}

// Rows are processed in pieces whose f32 values stay in the L1 cache: loops that mix 16-bit and
// 32-bit lanes with an exponential take four times as long.
constexpr int64_t kPiece = 512;

const float* read(const float* from, int64_t /*count*/, float* /*buffer*/) { return from; }
const float* read(const uint16_t* bf16, int64_t count, float* buffer) {
  bf16_to_f32(bf16, count, buffer);
  return buffer;
}

float* output_buffer(float* to, float* /*buffer*/) { return to; }
float* output_buffer(uint16_t* /*to*/, float* buffer) { return buffer; }

void write(const float* from, int64_t count, float* to) {
  if (from != to) {
    std::copy_n(from, count, to);
  }
}
void write(const float* from, int64_t count, uint16_t* bf16) { f32_to_bf16(from, count, bf16); }

template <typename Number>
void forward_row(const Number* hidden, Number* out, int64_t width) {
  float gate_piece[kPiece], up_piece[kPiece], out_piece[kPiece];
  for (int64_t i = 0; i < width; i += kPiece) {
    const int64_t count = std::min(kPiece, width - i);
    float* result = output_buffer(out + i, out_piece);
    forward_piece(read(hidden + i, count, gate_piece), read(hidden + width + i, count, up_piece),
                  count, result);
    write(result, count, out + i);
  }
}

// `out`: the activation, or null; may be grad_out.
template <typename Number>
void backward_row(const Number* grad_out, const Number* hidden, Number* grad, int64_t width,
                  Number* out) {
  float grad_piece[kPiece], gate_piece[kPiece], up_piece[kPiece], out_piece[kPiece];
  float grad_gate_piece[kPiece], grad_up_piece[kPiece];
  for (int64_t i = 0; i < width; i += kPiece) {
    const int64_t count = std::min(kPiece, width - i);
    float* grad_gate = output_buffer(grad + i, grad_gate_piece);
    float* grad_up = output_buffer(grad + width + i, grad_up_piece);
    const float* dy = read(grad_out + i, count, grad_piece);
    const float* gate = read(hidden + i, count, gate_piece);
    const float* up = read(hidden + width + i, count, up_piece);
    if (out == nullptr) {
      backward_piece<false>(dy, gate, up, count, grad_gate, grad_up, nullptr);
    } else {
      backward_piece<true>(dy, gate, up, count, grad_gate, grad_up, out_piece);
      write(out_piece, count, out + i);
    }
    write(grad_gate, count, grad + i);
    write(grad_up, count, grad + width + i);
  }
}

int64_t grain(int64_t width) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, width)); }

template <typename Number>
void forward(const SwigluForwardArgs& args) {
  const auto* hidden = static_cast<const Number*>(args.hidden);
  auto* out = static_cast<Number*>(args.out);
  at::parallel_for(0, args.rows, grain(args.width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      forward_row(hidden + row * 2 * args.width, out + row * args.width, args.width);
    }
  });
}

template <typename Number>
void backward(const SwigluBackwardArgs& args) {
  const auto* grad_out = static_cast<const Number*>(args.grad_out);
  const auto* hidden = static_cast<const Number*>(args.hidden);
  auto* grad = static_cast<Number*>(args.grad_hidden);
  auto* out = static_cast<Number*>(args.out);
  at::parallel_for(0, args.rows, grain(args.width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      backward_row(grad_out + row * args.width, hidden + row * 2 * args.width,
                   grad + row * 2 * args.width, args.width,
                   out == nullptr ? nullptr : out + row * args.width);
    }
  });
}

// Appends columns begin .. begin + count - 1 of the concatenated blocks to `to`.
void append_columns(ColumnBlocks from, int64_t begin, int64_t count, std::vector<ColumnBlock>& to) {
  int64_t first = 0;
  for (const ColumnBlock& block : from) {
    const int64_t from_column = std::max(begin - first, int64_t{0});
    const int64_t end_column = std::min(begin + count - first, block.columns);
    if (from_column < end_column) {
      to.push_back({block.b.from(0, from_column), end_column - from_column});
    }
    first += block.columns;
  }
}

// Applies SwiGLU to one row; overwrites gate and up.
void apply_swiglu(float* gate, float* up, int64_t count, float* out) {
  forward_piece(gate, up, count, out);
}
void apply_swiglu(float* gate, float* up, int64_t count, uint16_t* out) {
  round_to_bf16(gate, count, gate);
  round_to_bf16(up, count, up);
  forward_piece(gate, up, count, gate);
  f32_to_bf16(gate, count, out);
}

// Computes rows first_row .. first_row + count - 1 on this thread.
template <typename Number>
void fused_gemm_swiglu(const GemmSwigluArgs& args, int64_t first_row, int64_t count) {
  constexpr int64_t kColumns = kGemmColumns / 2;
  auto* out = static_cast<Number*>(args.out);
  std::vector<ColumnBlock> both;
  for (int64_t column = 0; column < args.width; column += kColumns) {
    const int64_t columns = std::min(kColumns, args.width - column);
    both.clear();
    append_columns(args.gate_up, column, columns, both);
    append_columns(args.gate_up, args.width + column, columns, both);
    gemm_row_blocks({count, 2 * columns, args.inner}, args.x.from(first_row, 0), both,
                    [&](int64_t first, int64_t rows, float* c) {
                      for (int64_t row = 0; row < rows; ++row) {
                        float* gate = c + row * 2 * columns;
                        apply_swiglu(gate, gate + columns, columns,
                                     out + (first_row + first + row) * args.width + column);
                      }
                    });
  }
}

}  // namespace

void fused_gemm_swiglu_cpu(const GemmSwigluArgs& args) {
  const int64_t tiles = (args.rows + kTileRows - 1) / kTileRows;
  const int64_t grain = (tiles + at::get_num_threads() - 1) / at::get_num_threads();
  const auto multiply = args.is_bf16 ? fused_gemm_swiglu<uint16_t> : fused_gemm_swiglu<float>;
  at::parallel_for(0, tiles, grain, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kTileRows;
    multiply(args, first, std::min(args.rows, end * kTileRows) - first);
  });
}

void swiglu_forward_cpu(const SwigluForwardArgs& args) {
  args.is_bf16 ? forward<uint16_t>(args) : forward<float>(args);
}

void swiglu_backward_cpu(const SwigluBackwardArgs& args) {
  args.is_bf16 ? backward<uint16_t>(args) : backward<float>(args);
}

}  // namespace moe::kernels
