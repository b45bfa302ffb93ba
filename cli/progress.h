#pragma once
// What a person sees while work goes on: on a terminal a bar with rate and ETA, in a pipe plain
// lines at a decent pace. Everything goes to standard error; results go elsewhere.

#include <chrono>
#include <cstdint>
#include <string>

namespace moe::cli {

bool is_terminal(int descriptor);  // 1 = stdout, 2 = stderr

// Characters a line of the terminal has; 80 where it does not say.
size_t terminal_width(int descriptor);
std::string bar_text(double share);  // "[=====     ]" of a share in 0..1

std::string format_bytes(double bytes);      // "1.5 GB"
std::string format_count(double count);      // "1.05 M"
std::string format_seconds(double seconds);  // "1:02:03", "0.4 s"

class Progress {
 public:
  // `unit` names what is counted ("B" prints bytes). total 0 = unknown. quiet prints nothing.
  Progress(std::string label, std::string unit, uint64_t total, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(uint64_t amount) { set(done_ + amount); }
  void set(uint64_t done);
  // Of what is done, this much was there before: it took no time, rates leave it out.
  void skip(uint64_t amount) { skipped_ = amount; }
  void remark(std::string text) { remark_ = std::move(text); }  // stands behind the rate
  void line(const std::string& text);                           // a line above the bar
  void finish();

 private:
  void print(bool last);
  enum class Detail { kNumbers, kCounts, kBar };  // each shows what the one before it does
  std::string text(bool last, Detail detail) const;
  std::string label_, unit_, remark_;
  uint64_t total_ = 0, done_ = 0, skipped_ = 0;
  bool quiet_ = false, terminal_ = false, finished_ = false;
  std::chrono::steady_clock::time_point start_, printed_;
};

}  // namespace moe::cli
