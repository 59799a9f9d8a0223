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

// Operations that are one kernel on CUDA, and have parts only on a CPU.
const std::unordered_set<std::string> WHOLE{"aten::addmm", "aten::addmm_", "aten::sum"};

struct Entry {
  std::string name;
  // Elements of the largest tensor that it reads or writes.
  int64_t largest;
  // The tensors, each as direction, type and sizes: "r BFloat16 4 64;w BFloat16 4 64".
  std::string tensors;
};

struct Frame : at::ObserverContext {
  bool has_parts = false, whole = false;
  std::vector<at::Tensor> reads;
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
void collect(const Values& values, std::vector<at::Tensor>& tensors) {
  for (const auto& value : values) {
    if (value.isTensor() && value.toTensor().defined()) tensors.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) tensors.push_back(tensor);
    }
  }
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  auto frame = std::make_unique<Frame>();
  collect(function.inputs(), frame->reads);
  frame->whole = WHOLE.count(function.name()) > 0;
  if (recorder) recorder->open.push_back(frame.get());
  return frame;
}

void describe(const char* direction, const at::Tensor& tensor, Entry& entry) {
  entry.largest = std::max(entry.largest, tensor.numel());
  entry.tensors += (entry.tensors.empty() ? "" : ";") + std::string(direction) + " " + c10::toString(tensor.scalar_type());
  for (const int64_t size : tensor.sizes()) entry.tensors += " " + std::to_string(size);
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (!recorder || recorder->open.empty() || recorder->open.back() != context) return;
  const Frame frame = std::move(*recorder->open.back());
  recorder->open.pop_back();
  const std::string name = function.name();
  // An autograd node is a wrapper too.
  const bool idle = IDLE.count(name) || name.find("::") == std::string::npos || name.rfind("autograd::", 0) == 0;
  if (idle && !frame.has_parts) return;
  bool part = false;
  for (auto* outer : recorder->open) {
    part |= outer->whole;
    outer->has_parts |= !outer->whole;
  }
  if (idle || frame.has_parts || part) return;
  std::vector<at::Tensor> writes;
  collect(function.outputs(), writes);
  Entry entry{name, 0, ""};
  // An operation of libtorch also names the tensor that its result goes to, which it reads only where it works in place.
  const bool in_place = name.back() == '_' && name != "aten::copy_" && name != "aten::zero_" && name != "aten::fill_";
  const bool reads_all = in_place || name.rfind("nestor::", 0) == 0;
  for (const auto& tensor : frame.reads) {
    const bool result = std::any_of(writes.begin(), writes.end(), [&](const auto& it) { return it.is_same(tensor); });
    if (!result || reads_all) describe("r", tensor, entry);
  }
  for (const auto& tensor : writes) describe("w", tensor, entry);
  recorder->entries.push_back(std::move(entry));
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

// The name of an operation and its tensors, both of which live as long as the record, and the elements of the largest one.
const char* nestor_record_entry(const Record* record, size_t index, int64_t* largest, const char** tensors) {
  const auto& entry = record->recorder->entries[index];
  *largest = entry.largest;
  *tensors = entry.tensors.c_str();
  return entry.name.c_str();
}

void nestor_record_end(Record* record) {
  at::removeCallback(record->handle);
  recorder = nullptr;
  delete record;
}
}
