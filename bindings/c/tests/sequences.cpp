// Sequences and optional values through the C++ header: sequences PLAN.
#include <iostream>

#include "of_runtime.hpp"

using of_runtime::Value;

int main(int argc, char **argv) {
    if (argc != 2) return 1;
    try {
        of_runtime::Session session{of_runtime::Plan(argv[1])};
        std::vector<Value> items;
        for (int64_t i = 1; i <= 3; ++i) {
            const std::vector<float> elements(static_cast<size_t>(i), static_cast<float>(i));
            items.push_back(Value::tensor(elements.data(), {i}));
        }
        session.set_input(0, Value::sequence(items));
        const float five[] = {5};
        session.set_input(1, Value::optional(Value::tensor(five, {1})));
        session.run();
        const auto sequence = session.output_value(0), optional = session.output_value(1);
        std::cout << sequence.size() << " items: ";
        for (size_t i = 0; i < sequence.size(); ++i) {
            const auto item = sequence[i].tensor();
            for (size_t k = 0; k < item.count<float>(); ++k) std::cout << item.elements<float>()[k] << " ";
        }
        std::cout << "\n";
        if (optional.kind() != OF_VALUE_OPTIONAL || optional.size() != 1) return 1;
        std::cout << "present: " << optional[0].tensor().elements<float>()[0] << "\n";
        session.set_input(1, Value::optional());
        session.run();
        if (session.output_value(1).size() != 0) return 1;
        try {
            session.output_value(0)[3];
        } catch (const of_runtime::Error &error) {
            std::cout << "refused: " << error.what() << "\n";
        }
    } catch (const std::exception &error) {
        std::cerr << "error: " << error.what() << "\n";
        return 1;
    }
}
