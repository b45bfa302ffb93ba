#pragma once
// Each command adds itself to the app: flags -> settings struct -> one call into core, made when
// the command is parsed.

namespace CLI {
class App;
}

namespace moe::cli {

void add_upcycle(CLI::App& app);
void add_init(CLI::App& app);
void add_train(CLI::App& app);
void add_eval(CLI::App& app);
void add_report(CLI::App& app);
void add_route(CLI::App& app);
void add_bench(CLI::App& app);
void add_inspect(CLI::App& app);
void add_generate(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_quickstart(CLI::App& app);
void add_completion(CLI::App& app);

}  // namespace moe::cli
