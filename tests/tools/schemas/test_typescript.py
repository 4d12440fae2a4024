from __future__ import annotations

import pytest
from tools.schemas.inventory import definitions
from tools.schemas.typescript import types_of

DECLARED = """
import type { Usage as Usage_2 } from 'elsewhere';
/** Words with { brackets } and type Fake = string; in them. */
export declare type Mode = 'plan' | 'it\\'s' | null;
declare type Message = {
    type: 'system';
    // a remark
    subtype?: string | undefined;
    usage: Usage_2;
    plugins: {
        name: string;
        version?: string;
    }[];
    extra?: Record<string, unknown>;
    call(a: string, b: { c: number }): Promise<void>;
    effort?: ('low' | 'high') | null;
    readonly pair: [first: number, second: core.Mode];
    [key: string]: unknown;
};
declare function f(a: string): { b: string };
declare const LIST: readonly ['a', 'b'];
export declare class Store implements Other { put(a: string): void; }
export interface Child extends Base<string>, core.Other {
  on: boolean
  only?: -1
}
declare namespace core { export { Mode } }
export type Callback = (a: string, options: { b: number }) => Promise<void>;
type Mapped<T extends Array<string>> = { [K in keyof T]?: T[K] extends string ? 'a' : 'b' };
type Both = Base & ({ a: string } | { b: string });
export {}
"""


def test_declarations_are_read_and_the_rest_is_passed_over() -> None:
    assert definitions(types_of(DECLARED)) == {
        "Both": "Base & (Both<a> | Both<b>)",
        "Both<a>": {"a": "string"},
        "Both<b>": {"b": "string"},
        "Callback": "any",
        "Child": {"...": "Base & Other", "on": "boolean", "only?": "-1"},
        "Mapped": "{ *: any }",
        "Message": {
            "*": "any",
            "call": "any",
            "effort?": "'high' | 'low' | null",
            "extra?": "{ *: any }",
            "pair": "(Mode | number)[]",
            "plugins": "Message.plugins#[]",
            "subtype?": "string",
            "type": "'system'",
            "usage": "Usage_2",
        },
        "Message.plugins#": {"name": "string", "version?": "string"},
        "Mode": ("'it\\u0027s'", "'plan'", "null"),
    }


@pytest.mark.parametrize("text", ["type A = { b c };", "type A = (string", "type A = Array<string;"])
def test_what_cannot_be_read_is_not_passed_over(text: str) -> None:
    with pytest.raises(ValueError, match="should be, near"):
        types_of(text)
