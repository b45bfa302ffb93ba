// The reference of expert_rows.h: plain loops. Tests hold the kernels to it.

#include <algorithm>
#include <vector>

#include "kernels/ops/expert_rows.h"

namespace moe::kernels {

void lay_out_reference(const LayoutShape& shape, const PlanRows& plan, const LayoutMemory& to) {
  const int64_t cells = shape.tokens * shape.columns;
  std::fill_n(to.origin, padded_rows(shape.rows, shape.experts), -1);
  std::fill_n(to.position, cells, -1);
  std::fill_n(to.expert, cells, -1);
  std::fill_n(to.times, cells, 0);
  int64_t row = 0, place = 0;
  for (int64_t expert = 0; expert < shape.experts; ++expert) {
    for (int64_t i = 0; i < plan.expert_rows[expert]; ++i, ++row, ++place) {
      const int64_t cell = plan.token[row] * shape.columns + plan.choice[row];
      to.origin[place] = static_cast<int32_t>(cell);
      to.position[cell] = static_cast<int32_t>(place);
      to.expert[cell] = static_cast<int32_t>(expert);
      to.times[cell] = static_cast<int32_t>(plan.count[row]);
    }
    place = (place + kSegmentRows - 1) / kSegmentRows * kSegmentRows;
    to.ends[expert] = static_cast<int32_t>(place);
  }
}

template <typename Number>
void gather_rows_reference(const RowsShape& shape, const int32_t* origin, const int32_t* ends,
                           const Number* x, Number* rows) {
  for (int64_t row = 0; row < ends[shape.experts - 1]; ++row) {
    for (int64_t d = 0; d < shape.width; ++d) {
      rows[row * shape.width + d] =
          origin[row] < 0 ? 0 : x[origin[row] / shape.columns * shape.width + d];
    }
  }
}

template <typename Number>
void combine_rows_reference(const RowsShape& shape, const int32_t* position, const Number* weight,
                            const Number* rows, Number* y) {
  for (int64_t t = 0; t < shape.tokens; ++t) {
    for (int64_t d = 0; d < shape.width; ++d) {
      double sum = 0;
      for (int64_t cell = t * shape.columns; cell < (t + 1) * shape.columns; ++cell) {
        if (position[cell] >= 0) {
          const double factor = weight == nullptr ? 1 : weight[cell];
          sum += factor * rows[position[cell] * shape.width + d];
        }
      }
      y[t * shape.width + d] = static_cast<Number>(sum);
    }
  }
}

template <typename Number>
void combine_rows_backward_reference(const RowsShape& shape, const int32_t* origin,
                                     const int32_t* ends, const Number* weight, const Number* rows,
                                     const Number* grad_y, Number* grad_rows, Number* grad_weight) {
  std::fill_n(grad_weight, shape.tokens * shape.columns, 0);
  for (int64_t row = 0; row < ends[shape.experts - 1]; ++row) {
    const int64_t cell = origin[row], first = row * shape.width;
    double dot = 0;
    for (int64_t d = 0; d < shape.width; ++d) {
      const double grad = cell < 0 ? 0 : grad_y[cell / shape.columns * shape.width + d];
      grad_rows[first + d] = cell < 0 ? 0 : static_cast<Number>(weight[cell] * grad);
      dot += cell < 0 ? 0 : grad * rows[first + d];
    }
    if (cell >= 0) {
      grad_weight[cell] = static_cast<Number>(dot);
    }
  }
}

#define MOE_INSTANTIATE(Number)                                                                   \
  template void gather_rows_reference(const RowsShape&, const int32_t*, const int32_t*,           \
                                      const Number*, Number*);                                    \
  template void combine_rows_reference(const RowsShape&, const int32_t*, const Number*,           \
                                       const Number*, Number*);                                   \
  template void combine_rows_backward_reference(const RowsShape&, const int32_t*, const int32_t*, \
                                                const Number*, const Number*, const Number*,      \
                                                Number*, Number*)
MOE_INSTANTIATE(float);
MOE_INSTANTIATE(double);

}  // namespace moe::kernels
