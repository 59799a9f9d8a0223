//! Clothes, shoes and bags.

use super::{FANCY, LETTERS, PLAIN};
use crate::generate::shop::{Department, Kind};

pub const FASHION: Department = Department {
    category: "fashion",
    kinds: &[
        Kind {
            path: "Clothing, Shoes & Bags › Men › Shoes › Sport › Running",
            query: "men's running shoes",
            noun: "Men's Running Shoes",
            dollars: (24, 140),
            attributes: "rubber sole, arch support, lace closure, breathable mesh, shock absorbing, slip resistant, \
                memory foam, wide toe box, machine washable, reflective trim",
            options: &[("Color", FANCY), ("Size", "7, 7.5, 8, 8.5, 9, 9.5 wide, 10, 10.5 wide, 11, 12")],
        },
        Kind {
            path: "Clothing, Shoes & Bags › Women › Shoes › Sport › Walking",
            query: "women's walking sneakers",
            noun: "Women's Walking Sneakers",
            dollars: (19, 110),
            attributes: "slip on, memory foam, rubber outsole, non slip, arch support, breathable knit, ankle support, \
                lightweight sole, removable insole, vegan leather",
            options: &[
                ("Color", FANCY),
                ("Size", "women 5 / men 3.5, women 6 / men 4.5, women 7 / men 5.5, 8, 8.5 narrow, 9"),
            ],
        },
        Kind {
            path: "Clothing, Shoes & Bags › Men › Clothing › Shirts › Dress Shirts",
            query: "men's dress shirts",
            noun: "Men's Dress Shirt",
            dollars: (15, 85),
            attributes: "slim fit, long sleeve, button closure, wrinkle free, machine wash, cotton spandex, \
                tumble dry, french cuffs, classic collar, moisture wicking",
            options: &[
                ("Color", PLAIN),
                (
                    "Size",
                    "14.5\" neck 32\"-33\" sleeve, 15\" neck 32\"-33\" sleeve, 16\" neck 34\"-35\" sleeve, 3xl tall",
                ),
                ("Fit Type", "regular, slim, big & tall"),
            ],
        },
        Kind {
            path: "Clothing, Shoes & Bags › Women › Clothing › Dresses › Summer",
            query: "women's summer dress",
            noun: "Women's Summer Dress",
            dollars: (13, 75),
            attributes: "short sleeve, elastic waist, hand wash, loose fit, floral print, side pockets, \
                polyester spandex, high waist, knee length, button front, stretch fabric",
            options: &[("Color", FANCY), ("Size", LETTERS)],
        },
        Kind {
            path: "Clothing, Shoes & Bags › Men › Clothing › Hoodies › Pullover",
            query: "men's hooded sweatshirt",
            noun: "Men's Hooded Sweatshirt",
            dollars: (18, 90),
            attributes: "fleece lined, drawstring closure, long sleeve, kangaroo pocket, cotton blend, machine wash, \
                relaxed fit, ribbed cuffs, quick drying",
            options: &[("Color", PLAIN), ("Size", LETTERS), ("Style", "pullover, zip up")],
        },
        Kind {
            path: "Clothing, Shoes & Bags › Women › Clothing › Sport › Leggings",
            query: "women's yoga leggings",
            noun: "Women's Yoga Leggings",
            dollars: (12, 70),
            attributes: "tummy control, high waist, four way stretch, quick drying, moisture wicking, side pockets, \
                butt lifting, nylon spandex, squat proof, wide waistband",
            options: &[("Color", FANCY), ("Size", LETTERS), ("Length", "capri, 25 inch inseam, 28 inch inseam")],
        },
        Kind {
            path: "Clothing, Shoes & Bags › Women › Shoes › Boots › Ankle",
            query: "women's ankle boots",
            noun: "Women's Ankle Boots",
            dollars: (29, 180),
            attributes: "side zipper, block heel, faux leather, rubber sole, memory foam, pointed toe, \
                water resistant, warm lining, low heel",
            options: &[("Color", PLAIN), ("Size", "5.5, 6, 6.5, 7, 7.5, 8 wide, 8.5, 9, 10")],
        },
        Kind {
            path: "Clothing, Shoes & Bags › Men › Clothing › Swim › Trunks",
            query: "men's swim trunks",
            noun: "Men's Swim Trunks",
            dollars: (11, 60),
            attributes: "quick drying, mesh lining, elastic waistband, drawstring closure, polyester fiber, \
                side pockets, four way stretch, hand wash",
            options: &[("Color", FANCY), ("Size", "30, 32, 34, 36, 38, 40")],
        },
        Kind {
            path: "Clothing, Shoes & Bags › Women › Clothing › Coats › Winter",
            query: "women's winter coat",
            noun: "Women's Winter Coat",
            dollars: (35, 320),
            attributes: "faux fur, zipper closure, down alternative, water resistant, wind proof, long sleeve, \
                fleece lined, detachable hood, machine washable, slim fit, inner pocket",
            options: &[("Color", PLAIN), ("Size", LETTERS)],
        },
        Kind {
            path: "Clothing, Shoes & Bags › Luggage & Bags › Handbags › Crossbody",
            query: "crossbody bags",
            noun: "Crossbody Bag",
            dollars: (14, 210),
            attributes: "vegan leather, adjustable strap, zipper closure, multiple pockets, water resistant, \
                card slots, hand crafted, gold hardware, lightweight nylon",
            options: &[("Color", FANCY)],
        },
    ],
};
