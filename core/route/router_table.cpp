#include <type_traits>

#include "core/route/routers/all.h"

namespace moe::route {
namespace {

template <typename... Router>
std::vector<RouterFamily> families_of(std::type_identity<std::tuple<Router...>>) {
  return {Router::family()...};
}

}  // namespace

const std::vector<RouterFamily>& router_families() {
  static const std::vector<RouterFamily> families = families_of(std::type_identity<AllRouters>());
  return families;
}

const RouterFamily& default_family() { return router_families().front(); }

}  // namespace moe::route
