// One size is measured in three phases, each of which all ranks of all groups run together:
//
//   verify   For one algorithm after the other: prepare the buffers, sum exact data, count wrong
//            elements. A barrier separates preparation from the first message, because a rank must
//            not send to buffers that its peer has not registered.
//   measure  The loop of bench/harness.h. A rank returns the maximum time over all ranks, so that
//            all choose the same number of iterations and stop after the same round. Ranks of the
//            other group return 0 and wait for the maximum.
//   finish   Release the buffers when no rank uses them any more.
#include "bench/allreduce/runner.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/allreduce/exact_data.h"

namespace cadre::bench {
namespace {

absl::Status Named(const absl::Status& status, const Variant& variant) {
  return Annotate(status, absl::StrCat(variant.fabric, " ", variant.algorithm));
}

}  // namespace

Runner::Runner(const Member& member, std::vector<Entry> entries, const Options& options)
    : member_(member),
      entries_(std::move(entries)),
      options_(options),
      data_(options.max_bytes),
      input_(options.out_of_place ? data_.size() : 0) {}

absl::StatusOr<std::vector<Measurement>> Runner::Measure(int64_t bytes, bool in_place) {
  task_ = {.dtype = options_.dtype, .data = std::span(data_).first(bytes)};
  if (!in_place) task_.input = std::span(input_).first(bytes);
  std::vector<Measurement> measured;
  std::vector<TimedRun> runs;
  for (const Entry& entry : entries_) {
    CADRE_ASSIGN_OR_RETURN(Measurement verified, Verify(entry));
    measured.push_back(std::move(verified));
    runs.push_back([this, &entry](int iterations) { return Time(entry, iterations); });
  }
  options_.profile = false;
  CADRE_ASSIGN_OR_RETURN(const std::vector<Timing> timings,
                         MeasureInterleaved(runs, options_.effort));
  CADRE_RETURN_IF_ERROR(member_.BarrierOfAll());
  for (int64_t i = 0; i < std::ssize(entries_); ++i) {
    measured[i].timing = timings[i];
    if (entries_[i].algorithm != nullptr) entries_[i].algorithm->Finish();
  }
  return measured;
}

absl::StatusOr<Measurement> Runner::Verify(const Entry& entry) {
  std::string name;
  int64_t wrong = 0;
  if (AllReduce* const algorithm = entry.algorithm.get(); algorithm != nullptr) {
    if (absl::Status status = algorithm->Prepare(task_); !status.ok()) {
      return Named(status, entry.variant);
    }
    name = algorithm->name();
    absl::StatusOr<int64_t> counted = CountWrong(*algorithm);
    if (!counted.ok()) return Named(counted.status(), entry.variant);
    wrong = *counted;
    if (options_.profile && member_.rank() == 0 && !algorithm->explanation().empty()) {
      std::fprintf(stderr, "%s: %s\n", entry.variant.fabric.c_str(),
                   algorithm->explanation().c_str());
    }
  }
  Measurement measured;
  CADRE_ASSIGN_OR_RETURN(measured.algorithm, member_.First(name));
  CADRE_ASSIGN_OR_RETURN(const double errors, member_.Sum(static_cast<double>(wrong)));
  measured.errors = static_cast<int64_t>(errors);
  return measured;
}

absl::StatusOr<int64_t> Runner::CountWrong(AllReduce& algorithm) {
  const std::span<std::byte> addend =
      task_.in_place() ? task_.data : std::span(input_).first(task_.data.size());
  std::fill(task_.data.begin(), task_.data.end(), std::byte{0xff});
  FillExact(options_.dtype, member_.rank(), member_.ranks(), addend);
  // A rank must not send to buffers that its peer has not prepared.
  CADRE_RETURN_IF_ERROR(member_.Barrier());
  CADRE_RETURN_IF_ERROR(algorithm.Run());
  const int64_t wrong =
      algorithm.adds() ? CountErrors(options_.dtype, member_.ranks(), task_.data) : 0;
  // Zeros remain zeros however often they are summed while the clock runs.
  std::fill(task_.data.begin(), task_.data.end(), std::byte{0});
  std::fill(addend.begin(), addend.end(), std::byte{0});
  return wrong;
}

absl::StatusOr<double> Runner::Time(const Entry& entry, int iterations) {
  double seconds = 0;
  if (entry.algorithm != nullptr) {
    absl::StatusOr<double> own = TimeOwn(*entry.algorithm, iterations);
    if (!own.ok()) return Named(own.status(), entry.variant);
    seconds = *own;
  }
  return member_.Max(seconds);
}

absl::StatusOr<double> Runner::TimeOwn(AllReduce& algorithm, int iterations) {
  CADRE_RETURN_IF_ERROR(member_.Barrier());
  // One run before the clock starts refills the caches after another variant.
  if (iterations > 1) {
    CADRE_RETURN_IF_ERROR(algorithm.Run());
    CADRE_RETURN_IF_ERROR(member_.Barrier());
  }
  absl::Status status;
  const double seconds = SecondsOf([&] {
    for (int i = 0; i < iterations && status.ok(); ++i) status = algorithm.Run();
  });
  CADRE_RETURN_IF_ERROR(status);
  return seconds;
}

}  // namespace cadre::bench
