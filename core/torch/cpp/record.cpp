// A record of the operations that this thread dispatches and of the memory that they hold, for tests.

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "guarded.h"

namespace {

// Operations that compute nothing: views, allocations, and wrappers of others.
const std::unordered_set<std::string> IDLE{
    "aten::view",     "aten::_unsafe_view", "aten::as_strided",    "aten::narrow",         "aten::slice",
    "aten::select",   "aten::t",            "aten::transpose",     "aten::unsqueeze",      "aten::squeeze",
    "aten::expand",   "aten::detach",       "detach",              "aten::alias",          "aten::split_with_sizes",
    "aten::empty",    "aten::empty_like",   "aten::empty_strided", "aten::resolve_conj",   "aten::resolve_neg",
    "aten::reshape",  "aten::to",           "aten::contiguous",    "aten::result_type",    "aten::permute",
    "aten::numpy_T",  "aten::requires_grad_", "aten::resize_",     "aten::view_as",        "aten::split",
    "aten::lift_fresh", "aten::item",       "aten::is_nonzero",    "aten::_reshape_alias", "aten::new_empty",
    "aten::zeros",    "aten::zeros_like",   "aten::clone",         "aten::_to_copy",       "aten::expand_as",
};

struct Entry {
  std::string name;
  // Elements of the largest tensor that it reads or writes.
  int64_t largest;
};

struct Frame : at::ObserverContext {
  bool has_parts = false;
  int64_t largest_input = 0;
};

struct Recorder : c10::MemoryReportingInfoBase {
  std::vector<Entry> entries;
  std::vector<Frame*> open;
  int64_t live = 0;

  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override { live += bytes; }
  bool memoryProfilingEnabled() const override { return true; }
};

thread_local Recorder* recorder = nullptr;

template <typename Values>
int64_t largest(const Values& values) {
  int64_t most = 0;
  for (const auto& value : values) {
    if (value.isTensor() && value.toTensor().defined()) most = std::max(most, value.toTensor().numel());
  }
  return most;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  auto frame = std::make_unique<Frame>();
  frame->largest_input = largest(function.inputs());
  if (recorder) recorder->open.push_back(frame.get());
  return frame;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (!recorder || recorder->open.empty() || recorder->open.back() != context) return;
  const auto [has_parts, largest_input] = std::pair(recorder->open.back()->has_parts, recorder->open.back()->largest_input);
  recorder->open.pop_back();
  const std::string name = function.name();
  // An autograd node is a wrapper too.
  const bool idle = IDLE.count(name) || name.find("::") == std::string::npos || name.rfind("autograd::", 0) == 0;
  if (idle && !has_parts) return;
  for (auto* outer : recorder->open) outer->has_parts = true;
  if (idle || has_parts) return;
  recorder->entries.push_back({name, std::max(largest_input, largest(function.outputs()))});
}

struct Record {
  std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
  c10::DebugInfoGuard memory{c10::DebugInfoKind::PROFILER_STATE, recorder};
  at::CallbackHandle handle;
};

}  // namespace

extern "C" {

// Starts a record of this thread.
int nestor_record_begin(Record** record, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    auto own = std::make_unique<Record>();
    recorder = own->recorder.get();
    own->handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(begin, end).needsInputs(true).needsOutputs(true));
    *record = own.release();
  });
}

// Bytes that were allocated and not freed since the record began.
int64_t nestor_record_live(const Record* record) {
  return record->recorder->live;
}

// Number of operations so far.
size_t nestor_record_count(const Record* record) {
  return record->recorder->entries.size();
}

// The name of an operation, which lives as long as the record, and the elements of its largest tensor.
const char* nestor_record_entry(const Record* record, size_t index, int64_t* largest) {
  const auto& entry = record->recorder->entries[index];
  *largest = entry.largest;
  return entry.name.c_str();
}

void nestor_record_end(Record* record) {
  at::removeCallback(record->handle);
  recorder = nullptr;
  delete record;
}
}
