#include "core/model/moe/layer_case.h"

#include "core/base/error.h"
#include "core/model/moe/layer.h"
#include "core/route/router.h"

namespace moe::model {
namespace {

using at::Tensor;

struct LayerCase {
  Tensor x, dy;  // [T, D]
  MoeWeights weights;
  route::RouterSettings router;
  route::RoutingGroup group;
};

void check_shape(const Tensor& matrix, int64_t rows, int64_t columns, const std::string& name,
                 const std::string& where) {
  if (matrix.size(0) != rows || matrix.size(1) != columns) {
    throw UserError("{}: '{}' is [{}, {}], the other keys want [{}, {}]", where, name,
                    matrix.size(0), matrix.size(1), rows, columns);
  }
}

// The experts as the layer keeps them: [E, 2F, D] and [E, D, F].
void read_experts(const Json& input, const std::string& where, MoeWeights& weights) {
  const int64_t experts = weights.router.size(0), width = weights.router.size(1);
  if (!input.contains("experts") || !input["experts"].is_array() ||
      static_cast<int64_t>(input["experts"].size()) != experts) {
    throw UserError("{}: 'experts' is not a list of {} experts, one a row of router_weight", where,
                    experts);
  }
  std::vector<Tensor> gate_up, down;
  int64_t inner = 0;
  for (int64_t expert = 0; expert < experts; ++expert) {
    const Json& matrices = input["experts"][expert];
    const std::string inside = fmt::format("{}: experts[{}]", where, expert);
    const Tensor gate = route::read_matrix(matrices, "gate", inside);
    const Tensor up = route::read_matrix(matrices, "up", inside);
    inner = expert == 0 ? gate.size(0) : inner;
    down.push_back(route::read_matrix(matrices, "down", inside));
    check_shape(gate, inner, width, "gate", inside);
    check_shape(up, inner, width, "up", inside);
    check_shape(down.back(), width, inner, "down", inside);
    gate_up.push_back(at::cat({gate, up}));
  }
  weights.gate_up = at::stack(gate_up);
  weights.down = at::stack(down);
}

LayerCase read_layer(const Json& input, const std::string& where) {
  LayerCase layer;
  layer.x = route::read_matrix(input, "x", where);
  layer.weights.router = route::read_matrix(input, "router_weight", where);
  const int64_t tokens = layer.x.size(0), width = layer.x.size(1),
                experts = layer.weights.router.size(0);
  check_shape(layer.weights.router, experts, width, "router_weight", where);
  layer.dy =
      input.contains("dy") ? route::read_matrix(input, "dy", where) : at::zeros_like(layer.x);
  check_shape(layer.dy, tokens, width, "dy", where);
  read_experts(input, where, layer.weights);
  if (!input.contains("router") || !input["router"].is_object()) {
    throw UserError("{}: 'router' is missing; give an object as in config.json", where);
  }
  layer.router = route::router_from_json(input["router"], where + ".router");
  route::check_router(layer.router, experts);
  layer.group = route::read_group(input, tokens, experts, where);
  return layer;
}

// The auxiliary losses that the case names, each put into `losses`, and their weighted sum. The
// counting that a load-balance loss wants is named by its key.
Tensor weighted_losses(const Json& input, const std::string& where,
                       const route::AuxLosses& computed, OrderedJson& losses) {
  Tensor total = at::zeros({});
  const Json coefficients = input.value("aux", Json::object());
  for (const auto& [name, coefficient] : coefficients.items()) {
    const Tensor loss = name == "entropy"         ? computed.entropy
                        : name == "l1"            ? computed.l1
                        : name.starts_with("lb_") ? computed.load_balance
                                                  : Tensor();
    if (!loss.defined() || !coefficient.is_number()) {
      throw UserError("{}: aux '{}' is no loss of this router with a number for its weight", where,
                      name);
    }
    losses[name] = route::number_json(loss);
    total = total + coefficient.get<double>() * loss;
  }
  return total;
}

OrderedJson experts_json(const Tensor& gate_up, const Tensor& down) {
  const int64_t inner = down.size(2);
  OrderedJson experts = OrderedJson::array();
  for (int64_t expert = 0; expert < down.size(0); ++expert) {
    experts.push_back({{"gate", route::matrix_json(gate_up[expert].narrow(0, 0, inner))},
                       {"up", route::matrix_json(gate_up[expert].narrow(0, inner, inner))},
                       {"down", route::matrix_json(down[expert])}});
  }
  return experts;
}

}  // namespace

route::RoutingCase read_layer_routing(const Json& input, const std::string& where) {
  const LayerCase layer = read_layer(input, where);
  return {router_logits(layer.x, layer.weights.router), {}, layer.group, layer.router};
}

OrderedJson answer_layer_case(const Json& input, const std::string& where) {
  LayerCase layer = read_layer(input, where);
  const Json coefficients = input.value("aux", Json::object());
  if (route::find_option(*layer.router.family, "lb") != nullptr &&
      coefficients.contains("lb_selected")) {
    layer.router.lb_count = route::LbCount::kSelected;
  }
  for (Tensor* leaf :
       {&layer.x, &layer.weights.router, &layer.weights.gate_up, &layer.weights.down}) {
    leaf->requires_grad_(true);
  }
  const MoeOutput out = moe_forward(layer.x, layer.weights, layer.router, layer.group, 1.0);
  OrderedJson losses = OrderedJson::object();
  ((out.y * layer.dy).sum() + weighted_losses(input, where, out.losses, losses)).backward();

  const Tensor logits = router_logits(layer.x.detach(), layer.weights.router.detach());
  const route::Routing routing = route::route(logits, layer.router, layer.group);
  OrderedJson expect = {{"logits", route::matrix_json(logits)},
                        {"combine", route::matrix_json(routing.combine)},
                        {"y", route::matrix_json(out.y)}};
  route::put_decisions(routing, layer.router, expect);
  const auto grad = [](const Tensor& leaf) {
    return leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
  };
  return {{"expect", expect},
          {"loss", losses},
          {"grad",
           {{"x", route::matrix_json(grad(layer.x))},
            {"router_weight", route::matrix_json(grad(layer.weights.router))},
            {"experts", experts_json(grad(layer.weights.gate_up), grad(layer.weights.down))}}}};
}

}  // namespace moe::model
