// Runs plans from C++17: of_runtime.h with ownership and exceptions. Header only.
//
// A Plan may be used by any number of threads, a Session by one at a time. Every function but destructors throws of_runtime::Error.
#ifndef OF_RUNTIME_HPP
#define OF_RUNTIME_HPP

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "of_runtime.h"

namespace of_runtime {

// What went wrong: status() is its kind, what() the text.
class Error : public std::runtime_error {
public:
    Error(of_status status, const std::string &text) : std::runtime_error(text), status_(status) {}
    of_status status() const noexcept { return status_; }

private:
    of_status status_;
};

// Throws what the last call said, if it failed.
inline void check(of_status status) {
    if (status != OF_OK) throw Error(status, of_error_text());
}

// The element type of a C++ type.
template <class T> struct ElementType;
template <> struct ElementType<double> { static constexpr uint32_t value = OF_TYPE_F64; };
template <> struct ElementType<float> { static constexpr uint32_t value = OF_TYPE_F32; };
template <> struct ElementType<int8_t> { static constexpr uint32_t value = OF_TYPE_I8; };
template <> struct ElementType<int16_t> { static constexpr uint32_t value = OF_TYPE_I16; };
template <> struct ElementType<int32_t> { static constexpr uint32_t value = OF_TYPE_I32; };
template <> struct ElementType<int64_t> { static constexpr uint32_t value = OF_TYPE_I64; };
template <> struct ElementType<uint8_t> { static constexpr uint32_t value = OF_TYPE_UI8; };
template <> struct ElementType<uint16_t> { static constexpr uint32_t value = OF_TYPE_UI16; };
template <> struct ElementType<uint32_t> { static constexpr uint32_t value = OF_TYPE_UI32; };
template <> struct ElementType<uint64_t> { static constexpr uint32_t value = OF_TYPE_UI64; };
template <> struct ElementType<bool> { static constexpr uint32_t value = OF_TYPE_I1; };

// An input or output: of_port with strings.
struct Port {
    std::string name;
    uint32_t dtype;
    bool any_rank;
    std::vector<int64_t> dims;          // -1: open
    std::vector<std::string> dim_names; // the name of an open extent; "" for a number
    std::string type_text;

    explicit Port(const of_port &port)
        : name(port.name), dtype(port.dtype), any_rank(port.rank < 0), type_text(port.type_text) {
        for (int32_t i = 0; i < port.rank; ++i) {
            dims.push_back(port.dims[i]);
            dim_names.emplace_back(port.dim_names[i] ? port.dim_names[i] : "");
        }
    }
};

// A result, in the memory of its session or of the caller. Valid until the session runs again or ends.
struct View {
    uint32_t dtype;
    std::vector<int64_t> dims;
    void *data;
    size_t bytes;

    // The elements; throws if they are of another type.
    template <class T> const T *elements() const {
        if (dtype != ElementType<T>::value) throw Error(OF_INVALID_ARGUMENT, "the result has another element type");
        return static_cast<const T *>(data);
    }
    template <class T> size_t count() const { return bytes / sizeof(T); }
};

// A value that something else owns: an output, a Value, or an item of one. Valid as long as its owner.
class ValueView {
public:
    explicit ValueView(const of_value *value) noexcept : value_(value) {}

    // OF_VALUE_TENSOR, OF_VALUE_SEQUENCE or OF_VALUE_OPTIONAL.
    uint32_t kind() const {
        uint32_t kind = 0;
        check(of_value_kind(value_, &kind));
        return kind;
    }
    // How many items a sequence has; 1 for an optional value that is there.
    size_t size() const {
        size_t count = 0;
        check(of_value_count(value_, &count));
        return count;
    }
    ValueView operator[](size_t index) const {
        const of_value *item = nullptr;
        check(of_value_item(value_, index, &item));
        return ValueView(item);
    }
    View tensor() const {
        of_tensor tensor;
        check(of_value_tensor(value_, &tensor));
        return View{tensor.dtype, std::vector<int64_t>(tensor.dims, tensor.dims + tensor.rank), tensor.data, tensor.bytes};
    }
    std::string_view text(size_t element) const {
        const char *text = nullptr;
        size_t length = 0;
        check(of_value_text(value_, element, &text, &length));
        return std::string_view(text, length);
    }

    const of_value *get() const noexcept { return value_; }

private:
    const of_value *value_;
};

// A tensor, a sequence or an optional value with a copy of what it is made from.
class Value {
public:
    template <class T> static Value tensor(const T *data, const std::vector<int64_t> &dims) {
        size_t count = 1;
        for (int64_t dim : dims) count *= static_cast<size_t>(dim);
        of_tensor tensor{ElementType<T>::value, static_cast<uint32_t>(dims.size()), dims.data(), const_cast<T *>(data),
                         count * sizeof(T)};
        of_value *value = nullptr;
        check(of_value_new_tensor(&tensor, &value));
        return Value(value);
    }
    static Value sequence(const std::vector<Value> &items) {
        std::vector<const of_value *> pointers;
        for (const Value &item : items) pointers.push_back(item.value_.get());
        of_value *value = nullptr;
        check(of_value_new_sequence(pointers.data(), pointers.size(), &value));
        return Value(value);
    }
    // An absent value, and one that is there.
    static Value optional() { return optional_of(nullptr); }
    static Value optional(const Value &item) { return optional_of(item.value_.get()); }

    ValueView view() const noexcept { return ValueView(value_.get()); }

private:
    explicit Value(of_value *value) : value_(value) {}

    static Value optional_of(const of_value *item) {
        of_value *value = nullptr;
        check(of_value_new_optional(item, &value));
        return Value(value);
    }

    struct Free {
        void operator()(of_value *value) const noexcept { of_value_free(value); }
    };
    std::unique_ptr<of_value, Free> value_;
};

class Plan {
public:
    explicit Plan(const std::string &path) {
        of_plan *plan = nullptr;
        check(of_plan_open(path.c_str(), &plan));
        plan_.reset(plan);
    }
    Plan(const void *bytes, size_t len) {
        of_plan *plan = nullptr;
        check(of_plan_open_memory(bytes, len, &plan));
        plan_.reset(plan);
    }

    // Opens a plan only if the holder of the public key signed it; the signature is in path + ".sig".
    static Plan signed_by(const std::string &key, const std::string &path) {
        of_plan *plan = nullptr;
        check(of_plan_open_signed(path.c_str(), nullptr, key.c_str(), &plan));
        return Plan(plan);
    }

    size_t program_count() const {
        size_t count = 0;
        check(of_plan_program_count(get(), &count));
        return count;
    }
    std::vector<Port> inputs(size_t program = 0) const { return ports(of_plan_input_count, of_plan_input, program); }
    std::vector<Port> outputs(size_t program = 0) const { return ports(of_plan_output_count, of_plan_output, program); }
    std::vector<Port> variables(size_t program = 0) const {
        return ports(of_plan_variable_count, of_plan_variable, program);
    }

    const of_plan *get() const noexcept { return plan_.get(); }

private:
    explicit Plan(of_plan *plan) : plan_(plan) {}

    template <class Count, class Get> std::vector<Port> ports(Count count_of, Get get_port, size_t program) const {
        size_t count = 0;
        check(count_of(get(), program, &count));
        std::vector<Port> all;
        for (size_t i = 0; i < count; ++i) {
            of_port port;
            check(get_port(get(), program, i, &port));
            all.emplace_back(port);
        }
        return all;
    }

    struct Free {
        void operator()(of_plan *plan) const noexcept { of_plan_free(plan); }
    };
    std::unique_ptr<of_plan, Free> plan_;
};

class Session {
public:
    explicit Session(const Plan &plan, const of_session_options &options = of_session_options{0, 0, 0}) {
        of_session *session = nullptr;
        check(of_session_new(plan.get(), &options, &session));
        session_.reset(session);
    }

    // Shares the variables of another session of the same plan.
    Session(const Plan &plan, const Session &other, const of_session_options &options = of_session_options{0, 0, 0}) {
        of_session *session = nullptr;
        check(of_session_new_sharing(plan.get(), &options, other.get(), &session));
        session_.reset(session);
    }

    // A session whose ranks are processes of this program, which calls serve_rank first in main, or of options.program.
    static Session of_ranks(const Plan &plan, const of_rank_options &ranks,
                            const of_session_options &options = of_session_options{0, 0, 0}) {
        of_session *session = nullptr;
        check(of_session_new_ranks(plan.get(), &options, &ranks, &session));
        return Session(session);
    }
    static Session of_ranks(const Plan &plan, uint32_t ranks) {
        return of_ranks(plan, of_rank_options{ranks, nullptr, 0, 0, 0});
    }

    // Sets an input: elements that stay valid and in place until others are set.
    template <class T> void set_input(size_t index, const T *data, std::initializer_list<int64_t> dims) {
        set_input(index, data, std::vector<int64_t>(dims));
    }
    template <class T> void set_input(size_t index, const T *data, const std::vector<int64_t> &dims) {
        size_t count = 1;
        for (int64_t dim : dims) count *= static_cast<size_t>(dim);
        of_tensor tensor{ElementType<T>::value, static_cast<uint32_t>(dims.size()), dims.data(), const_cast<T *>(data),
                         count * sizeof(T)};
        set_input(index, tensor);
    }
    void set_input(size_t index, const of_tensor &tensor) { check(of_session_set_input(get(), index, &tensor)); }
    void set_input_text(size_t index, const std::vector<std::string> &strings, const std::vector<int64_t> &dims) {
        // One more, so that neither is null: the C interface takes a null for strings that end with zero.
        std::vector<const char *> pointers(strings.size() + 1);
        std::vector<size_t> lengths(strings.size() + 1);
        for (size_t i = 0; i < strings.size(); ++i) {
            pointers[i] = strings[i].data();
            lengths[i] = strings[i].size();
        }
        size_t count = 1;
        for (int64_t dim : dims) count *= static_cast<size_t>(dim);
        if (count != strings.size()) throw Error(OF_INVALID_ARGUMENT, "there are not as many strings as the extents say");
        check(of_session_set_input_text(get(), index, static_cast<uint32_t>(dims.size()), dims.data(), pointers.data(),
                                        lengths.data()));
    }

    void set_input(size_t index, const Value &value) {
        check(of_session_set_input_value(get(), index, value.view().get()));
    }

    // The memory that runs write an output to; null: memory of the session.
    template <class T> void set_output(size_t index, T *data, size_t count) {
        check(of_session_set_output(get(), index, data, count * sizeof(T)));
    }

    // Copies the value of a variable of so many elements.
    template <class T> std::vector<T> variable(size_t index, size_t count) const {
        std::vector<T> values(count);
        check(of_session_get_variable(get(), index, values.data(), count * sizeof(T)));
        return values;
    }
    // Sets a variable; its elements are copied.
    template <class T> void set_variable(size_t index, const T *data, const std::vector<int64_t> &dims) {
        size_t count = 1;
        for (int64_t dim : dims) count *= static_cast<size_t>(dim);
        of_tensor tensor{ElementType<T>::value, static_cast<uint32_t>(dims.size()), dims.data(), const_cast<T *>(data),
                         count * sizeof(T)};
        check(of_session_set_variable(get(), index, &tensor));
    }
    void reset_variables() { check(of_session_reset_variables(get())); }

    void run() { check(of_session_run(get())); }

    View output(size_t index) const {
        of_tensor tensor;
        check(of_session_output(get(), index, &tensor));
        return View{tensor.dtype, std::vector<int64_t>(tensor.dims, tensor.dims + tensor.rank), tensor.data, tensor.bytes};
    }
    std::string_view output_text(size_t index, size_t element) const {
        const char *text = nullptr;
        size_t length = 0;
        check(of_session_output_text(get(), index, element, &text, &length));
        return std::string_view(text, length);
    }

    // Valid until the session runs again or ends.
    ValueView output_value(size_t index) const {
        const of_value *value = nullptr;
        check(of_session_output_value(get(), index, &value));
        return ValueView(value);
    }

    // Ends a run from another thread. A session of ranks that are processes then ends with them.
    void cancel(bool cancelled = true) { check(of_session_cancel(get(), cancelled)); }

    of_session *get() const noexcept { return session_.get(); }

private:
    explicit Session(of_session *session) : session_(session) {}

    struct Free {
        void operator()(of_session *session) const noexcept { of_session_free(session); }
    };
    std::unique_ptr<of_session, Free> session_;
};

// In a process that Session::of_ranks started: serves its rank until the session ends. Returns whether it did; main then returns.
inline bool serve_rank() {
    int32_t served = 0;
    check(of_serve_rank(&served));
    return served != 0;
}

} // namespace of_runtime
#endif
